"""Runs side by side: one policy a row, one load a group of columns, and the finding in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from tandem.report.measured import ENOUGH_ATTAINMENT, highest_carried
from tandem.report.statistics import Distribution
from tandem.report.summary import Summary
from tandem.report.tables import short_seconds

_GROUP_WIDTH, _FIRST_WIDTH = 58, 16


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a comparison: what was tried (a policy, a cluster), at which speed of the
    trace."""

    policy: str
    speed: float
    summary: Summary


@dataclass(frozen=True, slots=True)
class _Column:
    """One figure of every run: how it is shown, and the number by which the best is found."""

    title: str
    show: Callable[[Summary], str]
    rank: Callable[[Summary], float | None]


def _latency_column(title: str, find: Callable[[Summary], Distribution | None]) -> _Column:
    def show(summary: Summary) -> str:
        found = find(summary)
        if found is None:
            return "-"
        return f"{_short(found.p50_ns)}/{_short(found.p99_ns)}"

    def rank(summary: Summary) -> float | None:
        found = find(summary)
        return None if found is None else -found.p99_ns

    return _Column(title, show, rank)


_COLUMNS = (
    _Column(
        "goodput/s (kept)",
        lambda summary: f"{summary.goodput_rps:.2f} ({summary.attainment:.0%})",
        lambda summary: summary.goodput_rps,
    ),
    _latency_column("TTFT p50/p99", lambda summary: summary.latencies.ttft),
    _latency_column("TPOT p50/p99", lambda summary: summary.latencies.tpot),
    _Column(
        "hits",
        lambda summary: f"{summary.reuse.hit_ratio:.1%}",
        lambda summary: summary.reuse.hit_ratio,
    ),
    _Column(
        "rejected",
        lambda summary: f"{summary.endings.get('rejected', 0):,}",
        lambda summary: -summary.endings.get("rejected", 0),
    ),
)


def comparison_table(points: Sequence[Point], width: int) -> Table:
    """One table of all runs; the best of every column (of the p99 where there are two figures)
    carries a star. Loads stand side by side where `width` characters hold them, else below each
    other."""
    speeds = speeds_of(points)
    if _FIRST_WIDTH + _GROUP_WIDTH * len(speeds) <= width or len(speeds) == 1:
        return _side_by_side(points, speeds)
    table = _starred_table([column.title for column in _COLUMNS], "load")
    for speed in speeds:
        table.add_row(f"speed {speed:g}", style="dim")
        group = [point for point in points if point.speed == speed]
        for point in group:
            table.add_row(point.policy, *_cells(point, group))
        table.add_section()
    return table


def _side_by_side(points: Sequence[Point], speeds: Sequence[float]) -> Table:
    titles = [
        f"speed {speed:g}\n{column.title}" if not place and len(speeds) > 1 else column.title
        for speed in speeds
        for place, column in enumerate(_COLUMNS)
    ]
    table = _starred_table(titles, "column")
    groups = {speed: [point for point in points if point.speed == speed] for speed in speeds}
    for policy in policies_of(points):
        cells: list[str] = []
        for group in groups.values():
            own = next((point for point in group if point.policy == policy), None)
            cells += _cells(own, group) if own else ["-"] * len(_COLUMNS)
        table.add_row(policy, *cells)
    return table


def _starred_table(titles: Sequence[str], within: str) -> Table:
    """Names of runs, then figures, the best of each load or column with a star."""
    caption = f"* best of its {within}"
    table = Table(box=None, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    table.add_column("", style="bold")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _cells(point: Point, group: Sequence[Point]) -> list[str]:
    cells = []
    for column in _COLUMNS:
        ranks = [rank for each in group if (rank := column.rank(each.summary)) is not None]
        own = column.rank(point.summary)
        # What most of them reach distinguishes nobody.
        best = own is not None and own == max(ranks) and 2 * ranks.count(own) <= len(ranks)
        text = column.show(point.summary)
        cells.append(f"[bold green]{text}*[/]" if best else f"{text} ")
    return cells


def speeds_of(points: Sequence[Point]) -> list[float]:
    """Every speed once, slowest first."""
    return sorted({point.speed for point in points})


def policies_of(points: Sequence[Point]) -> list[str]:
    """Every policy once, in the order in which they were asked for."""
    return list(dict.fromkeys(point.policy for point in points))


def knee(points: Sequence[Point], policy: str) -> float | None:
    """The highest speed up to which nine requests in ten of the policy are within the SLO; None
    where they never are."""
    attained = {p.speed: p.summary.attainment for p in points if p.policy == policy}
    return highest_carried(
        speeds_of(points), lambda speed: attained.get(speed, 0.0) >= ENOUGH_ATTAINMENT
    )


def farthest(points: Sequence[Point]) -> tuple[float, list[str]]:
    """The highest knee of all, and whose it is; 0 and everybody where nobody keeps the SLO."""
    knees = {policy: knee(points, policy) or 0.0 for policy in policies_of(points)}
    highest = max(knees.values())
    return highest, [policy for policy, speed in knees.items() if speed == highest]


def finding(points: Sequence[Point]) -> str:
    """What the comparison shows, as one sentence."""
    speeds, policies = speeds_of(points), policies_of(points)
    highest, leaders = farthest(points)
    if len(speeds) == 1:
        return _leader(points, speeds[0], "" if speeds == [1.0] else f" at {speeds[0]:g}x")
    if not highest:
        return "Nobody keeps the SLO; " + _leader(points, speeds[0], f" at {speeds[0]:g}x")
    open_end = " or more" if highest == speeds[-1] else ""
    if len(leaders) == 1:
        rest = [knee(points, policy) or 0.0 for policy in policies if policy != leaders[0]]
        second = max(rest, default=0.0)
        others = f"; the others {second:g}x at most" if second else ""
        kept = f"{leaders[0]} keeps the SLO up to {highest:g}x the recorded load"
        return f"{kept}{open_end}{others}"
    return f"The SLO is kept up to {highest:g}x the recorded load{open_end}; there " + _leader(
        points, highest, ""
    )


def _leader(points: Sequence[Point], speed: float, at: str) -> str:
    """Who has the highest goodput at one speed, and by how much."""
    ranked = [point for point in points if point.speed == speed]
    ranked.sort(key=lambda point: -point.summary.goodput_rps)
    best_rps, least_rps = ranked[0].summary.goodput_rps, ranked[-1].summary.goodput_rps
    # What is best as the same number is no lead.
    best = f"{best_rps:.2f}/s"
    first = [point.policy for point in ranked if f"{point.summary.goodput_rps:.2f}/s" == best]
    if len(first) == len(ranked):
        return f"goodput is {best}{at} whatever the policy"
    times = ""
    if least_rps:
        ratio = best_rps / least_rps
        times = f", {ratio:.{0 if ratio >= 10 else 1}f} times that of {ranked[-1].policy}"
    who = f"{' and '.join(first)} {'has' if len(first) == 1 else 'have'}"
    return f"{who} the highest goodput{at}: {best}{times}"


def _short(duration_ns: float) -> str:
    return short_seconds(duration_ns).replace(" ", "")
