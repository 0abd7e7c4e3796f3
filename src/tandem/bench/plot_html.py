"""Draws a figure with plotly into one HTML file that opens without a network."""

from pathlib import Path

from plotly import graph_objects
from plotly.subplots import make_subplots

from tandem.bench.figures import Figure, Mark, Panel

_COLOURS = ("#1f5fa8", "#d1603d", "#777777")
_MODES = {
    Mark.LINE: "lines",
    Mark.POINTS: "markers",
    Mark.LINE_AND_POINTS: "lines+markers",
    Mark.DASHED: "lines",
}


def draw(figure: Figure, path: Path) -> None:
    """Writes the file. Raises `OSError` where it cannot be written."""
    titles = [panel.title for panel in figure.panels]
    canvas = make_subplots(
        rows=2, cols=2, subplot_titles=titles, vertical_spacing=0.14, horizontal_spacing=0.08
    )
    for place, panel in enumerate(figure.panels):
        _draw_panel(canvas, panel, place)
    canvas.update_layout(
        title={"text": f"{figure.title}<br><sup>{figure.subtitle}</sup>", "x": 0.5},
        template="plotly_white",
        font={"color": "#222222", "size": 12},
        height=820,
        margin={"t": 110},
    )
    canvas.write_html(path, include_plotlyjs=True)


def _draw_panel(canvas: graph_objects.Figure, panel: Panel, place: int) -> None:
    at = {"row": place // 2 + 1, "col": place % 2 + 1}
    for series, colour in zip(panel.series, _COLOURS, strict=False):
        trace = graph_objects.Scatter(
            x=series.x,
            y=series.y,
            name=series.name,
            mode=_MODES[series.mark],
            line={"color": colour, "dash": "dash" if series.mark is Mark.DASHED else "solid"},
            marker={"color": colour, "size": 5},
            legendgroup=panel.title,
            legendgrouptitle={"text": panel.title},
        )
        canvas.add_trace(trace, **at)
    for guide in panel.guides:
        add = canvas.add_vline if guide.vertical else canvas.add_hline
        add(guide.value, line={"color": "#444444", "dash": "dot"}, annotation_text=guide.text, **at)
    canvas.update_xaxes(title_text=panel.x_label, rangemode="tozero", **at)
    scale = {"type": "log"} if panel.log_y else {"rangemode": "tozero"}
    canvas.update_yaxes(title_text=panel.y_label, **scale, **at)
