"""What the plots show, as plain numbers: panels of labelled series. How they are drawn, and with
which library, the drawing modules know."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from tandem.bench.record import RequestRecord
from tandem.bench.sweep import SweepPoint, knee
from tandem.facts.slo import Slo

_BINS = 60


class Mark(StrEnum):
    """How a series is drawn."""

    LINE = "line"
    POINTS = "points"
    LINE_AND_POINTS = "both"
    DASHED = "dashed"


@dataclass(frozen=True)
class Series:
    """One named curve."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    mark: Mark = Mark.LINE


@dataclass(frozen=True)
class Guide:
    """A thin line across a panel with a word beside it: a bound, or the knee."""

    value: float
    text: str
    vertical: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `log_y` where values span decades."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    guides: tuple[Guide, ...] = field(default=())
    log_y: bool = False


@dataclass(frozen=True)
class Figure:
    """Up to four panels under one title; `subtitle` holds the settings."""

    title: str
    subtitle: str
    panels: tuple[Panel, ...]


def run_figure(title: str, subtitle: str, records: Sequence[RequestRecord], slo: Slo) -> Figure:
    """One run: TTFT as it went, the distributions, tokens a second, requests in flight."""
    good = [record for record in records if record.succeeded and record.ttft_s is not None]
    first = Series(
        "a request",
        tuple(record.sent_s for record in good),
        tuple((record.ttft_s or 0.0) * 1e3 for record in good),
        Mark.POINTS,
    )
    gaps_ms = [gap * 1e3 for record in good for gap in record.gaps_s]
    panels = (
        Panel(
            "Time to first token, as the run went",
            "sent at (s)",
            "TTFT (ms)",
            (first,),
            _bound(slo.ttft_s, "SLO"),
        ),
        Panel(
            "Time per output token: share of requests or gaps below",
            "time (ms)",
            "share (%)",
            (
                _shares("TPOT (mean of a request)", [(r.tpot_s or 0) * 1e3 for r in good]),
                _shares("ITL (each gap)", gaps_ms),
            ),
            _bound(slo.tpot_s, "SLO", vertical=True),
        ),
        Panel("Output tokens", "time (s)", "tokens / s", (_token_rate(good),)),
        Panel("Requests in flight", "time (s)", "requests", (_in_flight(records),)),
    )
    return Figure(title, subtitle, panels)


def sweep_figure(title: str, subtitle: str, points: Sequence[SweepPoint], slo: Slo) -> Figure:
    """A sweep: latencies, goodput and throughput over the load, with the knee marked."""
    by_rate = points[0].load.rate_rps is not None
    # "All at once" has no place on an axis.
    points = [point for point in points if math.isfinite(point.load.value)]
    x_label = "request rate (requests / s)" if by_rate else "requests in flight"
    best = knee(points)
    knee_guide = () if best is None else (Guide(best.load.value, "knee", vertical=True),)
    loads = tuple(point.load.value for point in points)
    served = [
        Series(
            "completed",
            loads,
            tuple(point.summary.request_throughput_rps for point in points),
            Mark.LINE_AND_POINTS,
        )
    ]
    if not slo.empty:
        good = tuple(point.summary.goodput_rps or 0.0 for point in points)
        served.append(Series("within the SLO", loads, good, Mark.LINE_AND_POINTS))
    if by_rate:
        served.append(Series("offered", loads, loads, Mark.DASHED))
    tokens = tuple(point.summary.output_throughput_tps for point in points)
    panels = (
        Panel(
            "Time to first token",
            x_label,
            "TTFT (ms)",
            _percentile_series(points, "ttft"),
            (*_bound(slo.ttft_s, "SLO"), *knee_guide),
            log_y=True,
        ),
        Panel("Requests served", x_label, "requests / s", tuple(served), knee_guide),
        Panel(
            "Time per output token",
            x_label,
            "TPOT (ms)",
            _percentile_series(points, "tpot"),
            (*_bound(slo.tpot_s, "SLO"), *knee_guide),
        ),
        Panel(
            "Output tokens",
            x_label,
            "tokens / s",
            (Series("output tokens", loads, tokens, Mark.LINE_AND_POINTS),),
            knee_guide,
        ),
    )
    return Figure(title, subtitle, panels)


def _percentile_series(points: Sequence[SweepPoint], name: str) -> tuple[Series, ...]:
    series = []
    for label in ("p50", "p99"):
        known = [
            (point.load.value, getattr(found, f"{label}_s") * 1e3)
            for point in points
            if (found := getattr(point.summary.latencies, name)) is not None
        ]
        x, y = zip(*known, strict=True) if known else ((), ())
        series.append(Series(label, tuple(x), tuple(y), Mark.LINE_AND_POINTS))
    return tuple(series)


def _shares(name: str, values: Sequence[float]) -> Series:
    """The cumulative distribution at 200 percentiles: enough for the eye, small in a file."""
    if not values:
        return Series(name, (), ())
    percents = np.linspace(0.0, 100.0, 200)
    return Series(name, tuple(np.percentile(values, percents).tolist()), tuple(percents.tolist()))


def _token_rate(good: Sequence[RequestRecord]) -> Series:
    """Tokens spread over the gaps in which they came, binned."""
    instants: list[float] = []
    weights: list[float] = []
    for record in good:
        assert record.first_token_s is not None
        events = record.first_token_s + np.concatenate([[0.0], np.cumsum(record.gaps_s)])
        instants += events.tolist()
        weights += [record.output_tokens / len(events)] * len(events)
    if not instants:
        return Series("output tokens", (), ())
    counts, edges = np.histogram(instants, bins=_BINS, weights=weights, range=(0, max(instants)))
    centres = (edges[:-1] + edges[1:]) / 2
    rates = counts / np.maximum(np.diff(edges), 1e-9)
    return Series("output tokens", tuple(centres.tolist()), tuple(rates.tolist()))


def _in_flight(records: Sequence[RequestRecord]) -> Series:
    changes = sorted(
        [(record.sent_s, 1) for record in records] + [(record.ended_s, -1) for record in records]
    )
    x, y, flying = [], [], 0
    for instant_s, change in changes:
        # Two points an instant draw the step.
        x += [instant_s, instant_s]
        y += [float(flying), float(flying + change)]
        flying += change
    return Series("in flight", tuple(x), tuple(y))


def _bound(value_s: float | None, text: str, *, vertical: bool = False) -> tuple[Guide, ...]:
    return () if value_s is None else (Guide(value_s * 1e3, text, vertical),)
