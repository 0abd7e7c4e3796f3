"""Draws a figure with matplotlib into a PNG (or whatever the file's ending names: SVG, PDF)."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogFormatter

from tandem.bench.figures import Figure, Guide, Mark, Panel

_COLOURS = ("#1f5fa8", "#d1603d", "#777777")
_NEAR = 2.0
_MARGIN = 0.08
_STYLES: dict[Mark, dict[str, Any]] = {
    Mark.LINE: {"linestyle": "-"},
    Mark.POINTS: {"linestyle": "", "marker": "o", "markersize": 3, "alpha": 0.6},
    Mark.LINE_AND_POINTS: {"linestyle": "-", "marker": "o", "markersize": 4},
    Mark.DASHED: {"linestyle": "--", "linewidth": 1.0},
}


def draw(figure: Figure, path: Path) -> None:
    """Writes the file. Raises `OSError` where it cannot be written."""
    canvas = Canvas(figsize=(11, 7.2), dpi=130, facecolor="white", layout="constrained")
    canvas.suptitle(f"{figure.title}\n{figure.subtitle}", fontsize=11)
    grid = canvas.subplots(2, 2).flat
    for axes, panel in zip(grid, figure.panels, strict=False):
        _draw_panel(axes, panel)
    canvas.savefig(path)


def _fits(axes: Axes, guide: Guide) -> bool:
    """Makes room for a guide and its word when it is near the edge; one far away would squeeze the
    curves, so it is left out."""
    low, high = axes.get_xlim() if guide.vertical else axes.get_ylim()
    if not low <= guide.value <= _NEAR * high:
        return False
    room = guide.value + _MARGIN * (high - low)
    if guide.vertical:
        axes.set_xlim(right=max(high, room))
    else:
        axes.set_ylim(top=max(high, room))
    return True


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for series, colour in zip(panel.series, _COLOURS, strict=False):
        axes.plot(series.x, series.y, color=colour, label=series.name, **_STYLES[series.mark])
    if panel.log_y:
        axes.set_yscale("log")
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
    else:
        axes.set_ylim(bottom=0)
    for guide in panel.guides:
        if not _fits(axes, guide):
            continue
        if guide.vertical:
            axes.axvline(guide.value, color="#444444", linewidth=0.9, linestyle=":")
            place, shift = (guide.value, 0.02), (3, 0)
            transform = axes.get_xaxis_transform()
        else:
            axes.axhline(guide.value, color="#444444", linewidth=0.9, linestyle=":")
            place, shift = (0.01, guide.value), (0, 3)
            transform = axes.get_yaxis_transform()
        axes.annotate(
            guide.text, place, shift, transform, "offset points", fontsize=8, color="#444444"
        )
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.set_xlabel(panel.x_label, fontsize=9)
    axes.set_ylabel(panel.y_label, fontsize=9)
    axes.tick_params(which="both", labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(panel.series) > 1:
        axes.legend(fontsize=8, frameon=False)
