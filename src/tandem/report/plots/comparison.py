"""Policies side by side: goodput, first tokens, later tokens and prefix hits, over the load or, at
one load, as bars."""

from collections.abc import Callable, Sequence

from tandem.facts.slo import Slo
from tandem.report.comparison import Point, farthest, finding, policies_of, speeds_of
from tandem.report.plots.chart import Chart, Curve, Guide, Mark, Panel
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
