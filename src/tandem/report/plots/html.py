"""Draws a chart with plotly into one HTML file that opens without a network."""

from math import log10
from pathlib import Path
from typing import Any

from plotly import graph_objects
from plotly.subplots import make_subplots

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

_MODES = {
    Mark.LINE: "lines",
    Mark.DASHED: "lines",
    Mark.STEPS: "lines",
    Mark.POINTS: "markers",
    Mark.LINE_AND_POINTS: "lines+markers",
}


def draw(chart: Chart, path: Path) -> None:
    """Writes the file. Raises `OSError` where it cannot be written."""
    alone = chart.columns == 1
    canvas = make_subplots(
        rows=chart.rows,
        cols=chart.columns,
        subplot_titles=[panel.title for panel in chart.panels],
        shared_xaxes=alone,
        vertical_spacing=0.12 / chart.rows if alone else 0.3 / chart.rows,
        horizontal_spacing=0.14,
    )
    for place, panel in enumerate(chart.panels):
        row, column = divmod(place, chart.columns)
        at = {"row": row + 1, "col": column + 1}
        # Panels that share their x axis name it once, at the bottom.
        named = not alone or place == len(chart.panels) - 1
        _draw_panel(canvas, panel, at, panel.x_label if named else "")
    canvas.update_layout(
        title={"text": f"<b>{chart.title}</b><br><sup>{chart.subtitle}</sup>", "x": 0.01},
        template="plotly_white",
        font={"color": "#222222", "size": 12},
        height=140 + (210 if alone else 320) * chart.rows,
        margin={"t": 110, "r": 130},
        hovermode="x unified" if alone else "closest",
    )
    canvas.write_html(path, include_plotlyjs=True)


def _draw_panel(
    canvas: graph_objects.Figure, panel: Panel, at: dict[str, int], x_label: str
) -> None:
    if panel.bars:
        _draw_bars(canvas, panel, at)
        return
    for curve in panel.curves:
        canvas.add_trace(_trace(curve, at == {"row": 1, "col": 1} and not panel.own_names), **at)
    if panel.own_names:
        for place, curve in enumerate(curve for curve in panel.curves if curve.label):
            canvas.add_annotation(_name(curve, place, panel.names_inside), **at)
    for guide in panel.guides:
        _draw_guide(canvas, guide, panel, at)
    canvas.update_xaxes(title_text=x_label, **at)
    scale = {"type": "log"} if panel.log_y else {"rangemode": "tozero"}
    canvas.update_yaxes(title_text=panel.y_label, **scale, **at)


def _trace(curve: Curve, first: bool) -> graph_objects.Scatter:
    """A click on a name in the legend hides the curves of that name in all panels."""
    colour = COLOURS[curve.colour % len(COLOURS)]
    return graph_objects.Scatter(
        x=curve.x,
        y=curve.y,
        name=curve.name,
        legendgroup=curve.name,
        showlegend=first,
        mode=_MODES[curve.mark],
        line={
            "color": colour,
            "dash": "dash" if curve.mark is Mark.DASHED else "solid",
            "shape": "hv" if curve.mark is Mark.STEPS else "linear",
            "width": 1.8,
        },
        marker={"color": colour, "size": 3 if curve.mark is Mark.POINTS else 6},
    )


def _name(curve: Curve, place: int, inside: bool) -> dict[str, Any]:
    """The curve's name in its colour, in the list beside its panel or in its lower right corner."""
    return {
        "xref": "x domain",
        "yref": "y domain",
        "x": 1.0,
        "y": 0.05 + 0.1 * place if inside else 1.0 - 0.15 * place,
        "text": curve.label,
        "font": {"color": COLOURS[curve.colour % len(COLOURS)]},
        "showarrow": False,
        "xanchor": "right" if inside else "left",
        "xshift": -8 if inside else 8,
    }


def _draw_bars(canvas: graph_objects.Figure, panel: Panel, at: dict[str, int]) -> None:
    values = panel.curves[0].y
    colours = [COLOURS[0], *[OTHER_BARS] * (len(values) - 1)]
    bars = graph_objects.Bar(
        x=values,
        y=panel.bars,
        orientation="h",
        marker={"color": colours},
        text=[f"{value:.3g}" for value in values],
        textposition="auto",
        showlegend=False,
    )
    canvas.add_trace(bars, **at)
    canvas.update_xaxes(title_text=panel.x_label, **at)
    canvas.update_yaxes(autorange="reversed", **at)


def _draw_guide(
    canvas: graph_objects.Figure, guide: Guide, panel: Panel, at: dict[str, int]
) -> None:
    colour = FAULT if guide.fault else INK
    line = {"color": colour, "dash": "dot", "width": 1}
    words: dict[str, Any] = {}
    if guide.text:
        words = {"annotation_text": guide.text, "annotation_font_color": colour}
    if guide.vertical:
        canvas.add_vline(guide.value, line=line, **words, **at)
        return
    if guide.text:
        words["annotation_y"] = _word_height(guide.value, panel)
    canvas.add_hline(guide.value, line=line, **words, **at)


def _word_height(value: float, panel: Panel) -> float:
    """On a logarithmic axis plotly wants the logarithm for words, though not for curves."""
    return log10(value) if panel.log_y and value > 0 else value
