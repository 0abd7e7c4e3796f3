"""Charts of what clients measured: one run as it went, and a sweep over loads."""

import math
from collections.abc import Sequence

import numpy as np

from tandem.facts.slo import Slo
from tandem.report.measured import SweepPoint, knee
from tandem.report.plots.chart import Chart, Curve, Guide, Mark, Panel
from tandem.report.record import MeasuredRequest

_BINS = 60
_GREY = 6


def measured_chart(
    title: str, subtitle: str, requests: Sequence[MeasuredRequest], slo: Slo
) -> Chart:
    """One run: TTFT as it went, the distributions, tokens a second, requests in flight."""
    good = [each for each in requests if each.finished and each.ttft_s is not None]
    first = Curve(
        "a request",
        tuple(request.arrival_ns / 1e9 for request in good),
        tuple((request.ttft_s or 0.0) * 1e3 for request in good),
        Mark.POINTS,
    )
    tpots_ms = [(request.tpot_s or 0.0) * 1e3 for request in good]
    gaps_ms = [gap_ns / 1e6 for request in good for gap_ns in request.gaps_ns]
    panels = (
        Panel(
            "Time to first token, as the run went",
            "sent at (s)",
            "TTFT (ms)",
            (first,),
            _bound(slo.ttft_s),
            own_names=True,
        ),
        Panel(
            "Time per output token: share of requests or gaps below",
            "time (ms)",
            "share (%)",
            (
                _shares("TPOT (mean of a request)", tpots_ms, 0),
                _shares("ITL (each gap)", gaps_ms, 1),
            ),
            _bound(slo.tpot_s, vertical=True),
            own_names=True,
            names_inside=True,
        ),
        Panel("Output tokens", "time (s)", "tokens / s", (_token_rate(good),), own_names=True),
        Panel(
            "Requests in flight", "time (s)", "requests", (_in_flight(requests),), own_names=True
        ),
    )
    return Chart(title, subtitle, panels)


def sweep_chart(title: str, subtitle: str, points: Sequence[SweepPoint], slo: Slo) -> Chart:
    """A sweep: latencies, goodput and throughput over the load, with the knee marked."""
    by_rate = points[0].load.rate_rps is not None
    # "All at once" has no place on an axis.
    points = [point for point in points if math.isfinite(point.load.value)]
    x_label = "request rate (requests / s)" if by_rate else "requests in flight"
    best = knee(points)
    at_knee = () if best is None else (Guide(best.load.value, "knee", vertical=True),)
    loads = tuple(point.load.value for point in points)
    tokens = tuple(point.summary.output_throughput_tps for point in points)
    panels = (
        Panel(
            "Time to first token",
            x_label,
            "TTFT (ms)",
            _percentile_curves(points, "ttft"),
            (*_bound(slo.ttft_s), *at_knee),
            log_y=True,
            own_names=True,
        ),
        Panel(
            "Requests served",
            x_label,
            "requests / s",
            _served_curves(points, loads, by_rate, not slo.empty),
            at_knee,
            own_names=True,
        ),
        Panel(
            "Time per output token",
            x_label,
            "TPOT (ms)",
            _percentile_curves(points, "tpot"),
            (*_bound(slo.tpot_s), *at_knee),
            own_names=True,
        ),
        Panel(
            "Output tokens",
            x_label,
            "tokens / s",
            (Curve("output tokens", loads, tokens, Mark.LINE_AND_POINTS),),
            at_knee,
            own_names=True,
        ),
    )
    return Chart(title, subtitle, panels)


def _served_curves(
    points: Sequence[SweepPoint], loads: tuple[float, ...], by_rate: bool, with_slo: bool
) -> tuple[Curve, ...]:
    completed = tuple(point.summary.request_throughput_rps for point in points)
    curves = [Curve("completed", loads, completed, Mark.LINE_AND_POINTS, 0, "completed")]
    if with_slo:
        good = tuple(point.summary.goodput_rps or 0.0 for point in points)
        within = "within the SLO"
        curves.append(Curve(within, loads, good, Mark.LINE_AND_POINTS, 1, within))
    if by_rate:
        curves.append(Curve("offered", loads, loads, Mark.DASHED, _GREY, "offered"))
    return tuple(curves)


def _percentile_curves(points: Sequence[SweepPoint], latency: str) -> tuple[Curve, ...]:
    curves = []
    for colour, name in enumerate(("p50", "p99")):
        known = [
            (point.load.value, getattr(found, f"{name}_ns") / 1e6)
            for point in points
            if (found := getattr(point.summary.latencies, latency)) is not None
        ]
        x, y = zip(*known, strict=True) if known else ((), ())
        curves.append(Curve(name, tuple(x), tuple(y), Mark.LINE_AND_POINTS, colour, name))
    return tuple(curves)


def _shares(name: str, values: Sequence[float], colour: int) -> Curve:
    """The cumulative distribution at 200 percentiles: enough for the eye, small in a file."""
    if not values:
        return Curve(name, (), (), Mark.LINE, colour, name)
    percents = np.linspace(0.0, 100.0, 200)
    x = tuple(np.percentile(values, percents).tolist())
    return Curve(name, x, tuple(percents.tolist()), Mark.LINE, colour, name)


def _token_rate(good: Sequence[MeasuredRequest]) -> Curve:
    """Tokens spread over the gaps in which they came, binned."""
    instants_s: list[float] = []
    weights: list[float] = []
    for request in good:
        events_ns = request.first_token_ns + np.concatenate([[0], np.cumsum(request.gaps_ns)])
        instants_s += (events_ns / 1e9).tolist()
        weights += [request.emitted_tokens / len(events_ns)] * len(events_ns)
    if not instants_s:
        return Curve("output tokens", (), ())
    span_s = (0, max(instants_s))
    counts, edges = np.histogram(instants_s, bins=_BINS, weights=weights, range=span_s)
    centres = (edges[:-1] + edges[1:]) / 2
    rates = counts / np.maximum(np.diff(edges), 1e-9)
    return Curve("output tokens", tuple(centres.tolist()), tuple(rates.tolist()))


def _in_flight(requests: Sequence[MeasuredRequest]) -> Curve:
    changes = sorted(
        [(request.arrival_ns, 1) for request in requests]
        + [(request.end_ns, -1) for request in requests]
    )
    in_flight = np.cumsum([0, *(change for _, change in changes)]).tolist()
    # The curve begins at nothing, when the first is sent.
    x = tuple(instant_ns / 1e9 for instant_ns, _ in (*changes[:1], *changes))
    return Curve("in flight", x, tuple(map(float, in_flight[: len(x)])), Mark.STEPS)


def _bound(value_s: float | None, *, vertical: bool = False) -> tuple[Guide, ...]:
    return () if value_s is None else (Guide(value_s * 1e3, "SLO", vertical),)
