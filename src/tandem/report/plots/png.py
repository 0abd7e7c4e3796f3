"""Draws a chart with matplotlib into a PNG (or whatever the file's ending names: SVG, PDF)."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from tandem.report.plots.chart import (
    COLOURS,
    FAULT,
    INK,
    OTHER_BARS,
    Chart,
    Curve,
    Guide,
    Mark,
    Panel,
)

_STYLES: dict[Mark, dict[str, Any]] = {
    Mark.LINE: {"linestyle": "-"},
    Mark.DASHED: {"linestyle": "--", "linewidth": 1.0},
    Mark.STEPS: {"linestyle": "-", "drawstyle": "steps-post", "linewidth": 1.1},
    Mark.POINTS: {"linestyle": "", "marker": ".", "markersize": 3, "alpha": 0.35},
    Mark.LINE_AND_POINTS: {"linestyle": "-", "marker": "o", "markersize": 4, "linewidth": 1.6},
}
_LABEL_POINTS = 9.0
_TITLE_LETTERS, _SUBTITLE_LETTERS = 100, 170
_MOST_TICKS = 10
_NEAR = 2.5
_POINTS_AN_INCH = 72.0


def draw(chart: Chart, path: Path) -> None:
    """Writes the file. Raises `OSError` where it cannot be written."""
    alone = chart.columns == 1
    row_inches = 1.65 if alone and chart.rows > 1 else 3.1
    size = (11.0, 0.9 + row_inches * chart.rows)
    canvas = Figure(figsize=size, dpi=120, facecolor="white", layout="constrained")
    title = fill(chart.title, _TITLE_LETTERS)
    canvas.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    grid = canvas.subplots(chart.rows, chart.columns, sharex=alone, squeeze=False).flat
    for axes, panel in zip(grid, chart.panels, strict=False):
        _draw_panel(axes, panel)
        if alone and panel is not chart.panels[-1]:
            axes.set_xlabel("")
    for axes in list(grid)[len(chart.panels) :]:
        axes.set_visible(False)
    canvas.text(
        0.01, -0.005, fill(chart.subtitle, _SUBTITLE_LETTERS), fontsize=8, color="#666666", va="top"
    )
    # The places of direct labels depend on the final size of the axes.
    canvas.draw_without_rendering()
    for axes, panel in zip(canvas.axes, chart.panels, strict=False):
        if not panel.names_inside:
            _label_curves(axes, panel.curves)
    canvas.savefig(path, bbox_inches="tight", pad_inches=0.15)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.set_xlabel(panel.x_label, fontsize=9)
    axes.set_ylabel(panel.y_label, fontsize=9)
    axes.tick_params(which="both", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.bars:
        _draw_bars(axes, panel)
        return
    for curve in panel.curves:
        axes.plot(curve.x, curve.y, color=_colour(curve), label=curve.label, **_STYLES[curve.mark])
    if panel.names_inside:
        axes.legend(fontsize=8, frameon=False, loc="lower right")
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, _top(panel))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=_whole(panel)))
    loads = sorted(
        {x for curve in panel.curves if curve.mark is Mark.LINE_AND_POINTS for x in curve.x}
    )
    if 0 < len(loads) <= _MOST_TICKS:
        axes.set_xticks(loads, [f"{load:.3g}" for load in loads])
    axes.grid(alpha=0.2)
    _make_room_beside(axes, panel.guides)
    for guide in panel.guides:
        low, high = axes.get_xlim() if guide.vertical else axes.get_ylim()
        # One far away would squeeze the curves.
        if low <= guide.value <= high:
            _draw_guide(axes, guide)


def _make_room_beside(axes: Axes, guides: Sequence[Guide]) -> None:
    """A bound a little to the right of all curves is shown; a fault there is none of the run."""
    _, right = axes.get_xlim()
    bounds = [guide.value for guide in guides if guide.vertical and not guide.fault]
    near = [1.05 * bound for bound in bounds if right < bound <= _NEAR * right]
    if near:
        axes.set_xlim(right=max(near))


def _draw_bars(axes: Axes, panel: Panel) -> None:
    values = panel.curves[0].y
    places = list(range(len(values)))
    colours = [COLOURS[0], *[OTHER_BARS] * (len(values) - 1)]
    shown = axes.barh(places, values, color=colours, height=0.7)
    axes.bar_label(shown, [f"{value:.3g}" for value in values], padding=3, fontsize=8)
    axes.set_yticks(places, panel.bars)
    axes.invert_yaxis()
    axes.margins(x=0.12)


def _draw_guide(axes: Axes, guide: Guide) -> None:
    colour = FAULT if guide.fault else INK
    style: dict[str, Any] = {"color": colour, "linewidth": 0.9, "linestyle": ":"}
    if guide.vertical:
        axes.axvline(guide.value, **style)
        place, shift, transform = (guide.value, 0.97), (3, 0), axes.get_xaxis_transform()
    else:
        axes.axhline(guide.value, **style)
        place, shift, transform = (0.005, guide.value), (0, 2), axes.get_yaxis_transform()
    axes.annotate(
        guide.text,
        place,
        shift,
        transform,
        "offset points",
        fontsize=8,
        color=colour,
        va="top" if guide.vertical else "bottom",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
    )


def _label_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    """Each name beside the end of its curve, pushed apart where ends lie close."""
    ends = [
        (float(axes.transData.transform((curve.x[-1], curve.y[-1]))[1]), curve)
        for curve in curves
        if curve.label and curve.x
    ]
    ends.sort(key=lambda end: end[0])
    canvas = axes.get_figure(root=True)
    assert canvas is not None
    step = _LABEL_POINTS * canvas.dpi / _POINTS_AN_INCH * 1.15
    heights = spread_apart([height for height, _ in ends], step, axes.bbox.y0, axes.bbox.y1)
    for height, (true_height, curve) in zip(heights, ends, strict=True):
        axes.annotate(
            curve.label,
            (curve.x[-1], curve.y[-1]),
            (6, (height - true_height) * _POINTS_AN_INCH / canvas.dpi),
            textcoords="offset points",
            fontsize=_LABEL_POINTS,
            color=_colour(curve),
            va="center",
            annotation_clip=False,
        )


def spread_apart(heights: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Sorted heights moved as little as needed to lie `step` apart and, where they fit, between
    `low` and `high`: neighbours that collide form a group around their mean."""
    groups: list[list[float]] = []

    def bottom(group: Sequence[float]) -> float:
        span = (len(group) - 1) * step
        return max(low, min(high - span, sum(group) / len(group) - span / 2))

    for height in heights:
        groups.append([height])
        while len(groups) > 1 and bottom(groups[-1]) < bottom(groups[-2]) + len(groups[-2]) * step:
            last = groups.pop()
            groups[-1] += last
    return [bottom(group) + place * step for group in groups for place in range(len(group))]


def _top(panel: Panel) -> float | None:
    """Room for the curves, and for the guides that lie near."""
    highest = max((y for curve in panel.curves for y in curve.y), default=0.0)
    near = [g.value for g in panel.guides if not g.vertical and g.value <= _NEAR * highest]
    # The name of a fault stands above the curves.
    named = any(guide.fault and guide.text for guide in panel.guides)
    return (1.3 if named else 1.08) * max(highest, *near, 0.0) or None


def _whole(panel: Panel) -> bool:
    return all(float(y).is_integer() for curve in panel.curves for y in curve.y)


def _colour(curve: Curve) -> str:
    return COLOURS[curve.colour % len(COLOURS)]
