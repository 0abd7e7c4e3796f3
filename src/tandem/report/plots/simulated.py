"""Charts of simulated runs: policies side by side, over the load or at one load as bars; one run as
it went (arrivals, TTFT, queues, KV, workers), with faults and rejections.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tandem.facts.slo import Slo
from tandem.report.comparison import Point, farthest, finding, policies_of, speeds_of
from tandem.report.plots.chart import Chart, Curve, Guide, Mark, Panel
from tandem.report.record import Ending, RunRecord, Sample
from tandem.report.statistics import Distribution
from tandem.report.summary import Summary

Reading = Callable[[Summary], float | None]


def comparison_chart(points: Sequence[Point], slo: Slo, subtitle: str) -> Chart:
    """Small multiples of one measure each; the title says the finding."""
    panels = _bar_panels(points) if len(speeds_of(points)) == 1 else _load_panels(points, slo)
    title = finding(points)
    return Chart(title[0].upper() + title[1:], subtitle, panels)


def _latency(find: Callable[[Summary], Distribution | None], rank: str, unit_ns: float) -> Reading:
    def read(summary: Summary) -> float | None:
        found = find(summary)
        return None if found is None else getattr(found, f"{rank}_ns") / unit_ns

    return read


def _goodput(summary: Summary) -> float:
    return summary.goodput_rps


def _kept(summary: Summary) -> float:
    return 100 * summary.attainment


def _hits(summary: Summary) -> float:
    return 100 * summary.reuse.hit_ratio


_ttft_p50 = _latency(lambda summary: summary.latencies.ttft, "p50", 1e9)
_ttft_p99 = _latency(lambda summary: summary.latencies.ttft, "p99", 1e9)
_tpot_p99 = _latency(lambda summary: summary.latencies.tpot, "p99", 1e6)


def _load_panels(points: Sequence[Point], slo: Slo) -> tuple[Panel, ...]:
    def panel(title: str, unit: str, read: Reading, guides: tuple[Guide, ...] = ()) -> Panel:
        curves = tuple(
            _load_curve(points, policy, read, colour)
            for colour, policy in enumerate(policies_of(points))
        )
        log_y = unit == "seconds"
        return Panel(title, "load (1 = as recorded)", unit, curves, guides, log_y)

    ttft = () if slo.ttft_s is None else (Guide(slo.ttft_s, "SLO"),)
    tpot = () if slo.tpot_s is None else (Guide(slo.tpot_s * 1e3, "SLO"),)
    return (
        panel(
            "Goodput: requests a second within the SLO",
            "requests / s",
            _goodput,
            _knee(points),
        ),
        panel("Share of all requests within the SLO", "%", _kept, (Guide(90.0, "90 %"),)),
        panel("Time to first token, median", "seconds", _ttft_p50, ttft),
        panel("Time to first token, p99", "seconds", _ttft_p99, ttft),
        panel("Time per output token, p99", "milliseconds", _tpot_p99, tpot),
        panel("Prompt tokens found in a cache", "%", _hits),
    )


def _knee(points: Sequence[Point]) -> tuple[Guide, ...]:
    """Where the best policy still keeps the SLO; one beyond the loads tried is no knee."""
    highest, leaders = farthest(points)
    if not highest or highest == speeds_of(points)[-1]:
        return ()
    whose = f"knee of {leaders[0]}" if len(leaders) == 1 else "knee"
    return (Guide(highest, whose, vertical=True),)


def _load_curve(points: Sequence[Point], policy: str, read: Reading, colour: int) -> Curve:
    seen = sorted(
        (point.speed, value)
        for point in points
        if point.policy == policy and (value := read(point.summary)) is not None
    )
    x, y = tuple(pair[0] for pair in seen), tuple(pair[1] for pair in seen)
    return Curve(policy, x, y, Mark.LINE_AND_POINTS, colour, policy)


def _bar_panels(points: Sequence[Point]) -> tuple[Panel, ...]:
    def panel(title: str, unit: str, read: Reading) -> Panel:
        ordered = sorted(points, key=lambda point: -point.summary.goodput_rps)
        values = [read(point.summary) for point in ordered]
        y = tuple(0.0 if value is None else value for value in values)
        curve = Curve(title, tuple(map(float, range(len(y)))), y)
        return Panel(title, unit, "", (curve,), bars=tuple(point.policy for point in ordered))

    return (
        panel("Goodput: requests a second within the SLO", "requests / s", _goodput),
        panel("Prompt tokens found in a cache", "%", _hits),
        panel("Time to first token, p99", "seconds", _ttft_p99),
        panel("Time per output token, p99", "milliseconds", _tpot_p99),
    )


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
