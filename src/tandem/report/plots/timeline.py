"""One simulated run as it went: arrivals, TTFT, queues, KV, workers, with faults and rejections."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from tandem.facts.slo import Slo
from tandem.report.plots.chart import Chart, Curve, Guide, Mark, Panel
from tandem.report.record import Ending, RunRecord, Sample
from tandem.report.summary import Summary

_FEWEST_BINS, _MOST_BINS, _REQUESTS_A_BIN = 12, 120, 15
_SHOWN_POINTS = 4000


def timeline(record: RunRecord, summary: Summary, slo: Slo, subtitle: str) -> Chart:
    """The chart of one run."""
    faults = tuple(
        Guide(decision.now_ns / 1e9, decision.text, vertical=True, fault=True)
        for decision in record.decisions
        if decision.kind == "fault"
    )
    # One panel names the faults; the others only mark them.
    marks = tuple(Guide(guide.value, vertical=True, fault=True) for guide in faults)
    panels = [
        _arrival_panel(record, faults),
        _ttft_panel(record, slo, marks),
        _request_panel(record, marks),
        _panel("Prompt tokens waiting", "thousand", marks, _curve(record, _queued)),
        _panel("KV blocks in use", "% of all", marks, _curve(record, _kv_used)),
        _worker_panel(record, marks),
    ]
    if any(sample.moving_bytes for sample in record.samples):
        moving = _curve(record, lambda sample: sample.moving_bytes / 1e9)
        panels.append(_panel("KV on the network", "GB under way", marks, moving))
    return Chart(_title(summary, slo), subtitle, tuple(panels), columns=1)


def _title(summary: Summary, slo: Slo) -> str:
    kept = f"{summary.attainment:.1%} of {summary.requests:,} requests"
    rejected = summary.endings.get("rejected", 0)
    turned = f", {rejected:,} rejected" if rejected else ""
    rate = f"goodput {summary.goodput_rps:.2f}/s"
    return f"{kept} {'kept ' + str(slo) if not slo.empty else 'finished'} - {rate}{turned}"


def _queued(sample: Sample) -> float:
    return sample.queued_prefill_tokens / 1e3


def _kv_used(sample: Sample) -> float:
    return 100 * sample.kv_used


def _panel(title: str, unit: str, guides: tuple[Guide, ...], *curves: Curve) -> Panel:
    return Panel(title, "seconds", unit, curves, guides, own_names=True)


def _curve(record: RunRecord, read: Callable[[Sample], float]) -> Curve:
    x = tuple(sample.now_ns / 1e9 for sample in record.samples)
    return Curve("", x, tuple(read(sample) for sample in record.samples), Mark.STEPS)


def _arrival_panel(record: RunRecord, faults: tuple[Guide, ...]) -> Panel:
    end_s = max((request.end_ns for request in record.requests), default=0) / 1e9
    bins = max(_FEWEST_BINS, min(_MOST_BINS, len(record.requests) // _REQUESTS_A_BIN))
    arrivals = [request.arrival_ns / 1e9 for request in record.requests]
    finished = [r.end_ns / 1e9 for r in record.requests if r.ending is Ending.FINISHED]
    refused = [r.arrival_ns / 1e9 for r in record.requests if r.ending is Ending.REJECTED]
    named = {"arrived": arrivals, "rejected": refused, "finished": finished}
    curves = [
        _rate(name, instants_s, max(end_s, 1.0) / bins, bins)
        for name, instants_s in named.items()
        if instants_s
    ]
    coloured = [replace(curve, colour=colour) for colour, curve in enumerate(curves)]
    return _panel("Requests a second", "requests / s", faults, *coloured)


def _rate(name: str, instants_s: Iterable[float], bin_s: float, bins: int) -> Curve:
    counts = [0] * bins
    for instant_s in instants_s:
        counts[min(bins - 1, int(instant_s / bin_s))] += 1
    x = tuple(place * bin_s for place in range(bins + 1))
    # The last step needs an end.
    y = tuple(count / bin_s for count in (*counts, counts[-1]))
    return Curve(name, x, y, Mark.STEPS, label=name)


def _ttft_panel(record: RunRecord, slo: Slo, marks: tuple[Guide, ...]) -> Panel:
    seen = [
        (request.arrival_ns / 1e9, request.ttft_s)
        for request in record.requests
        if request.ttft_s is not None
    ]
    # A plot of more points is slower and looks the same.
    seen = seen[:: -(-len(seen) // _SHOWN_POINTS) or 1]
    x, y = tuple(point[0] for point in seen), tuple(point[1] for point in seen)
    bound = () if slo.ttft_s is None else (Guide(slo.ttft_s, "SLO"),)
    curve = Curve("a request", x, y, Mark.POINTS)
    title = "Time to first token of each request, by its arrival"
    guides = (*bound, *marks)
    return Panel(title, "seconds", "seconds", (curve,), guides, log_y=True, own_names=True)


def _request_panel(record: RunRecord, marks: tuple[Guide, ...]) -> Panel:
    phases: tuple[tuple[str, Callable[[Sample], float]], ...] = (
        ("decoding", lambda sample: sample.decoding_requests),
        ("waiting", lambda sample: sample.waiting_requests),
        ("prefilling", lambda sample: sample.prefilling_requests),
    )
    return _panel("Requests by phase", "requests", marks, *_named(record, phases))


def _worker_panel(record: RunRecord, marks: tuple[Guide, ...]) -> Panel:
    roles: tuple[tuple[str, Callable[[Sample], float]], ...] = (
        ("prefill", lambda sample: sample.prefill_workers),
        ("decode", lambda sample: sample.decode_workers),
    )
    return _panel("Workers up", "workers", marks, *_named(record, roles))


def _named(
    record: RunRecord, reads: tuple[tuple[str, Callable[[Sample], float]], ...]
) -> list[Curve]:
    curves = []
    for colour, (name, read) in enumerate(reads):
        plain = _curve(record, read)
        curves.append(Curve(name, plain.x, plain.y, Mark.STEPS, colour, name))
    return curves
