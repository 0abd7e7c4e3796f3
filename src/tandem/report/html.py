"""One HTML file that opens without a network: tables and pictures of a run, in light and dark."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import jinja2
from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from tandem.report.documents import load_plotter
from tandem.report.plots.chart import Chart

_FOLDER = Path(__file__).parent / "files"


@dataclass(frozen=True, slots=True)
class HtmlReport:
    """What a report tells: a `title` with `notes` below, then charts, then the tables that a
    terminal shows."""

    title: str
    notes: Sequence[str]
    charts: Sequence[Chart]
    tables: Sequence[Table]

    def html(self) -> str:
        """The whole file. Raises `InvalidConfiguration` where matplotlib is not installed."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_FOLDER),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return environment.get_template("report.html").render(
            title=self.title,
            notes=self.notes,
            pictures=[(chart.title, Markup(svg_of(chart))) for chart in self.charts],
            tables=[_HtmlTable.of(table) for table in self.tables],
        )


def svg_of(chart: Chart) -> str:
    """The picture as an element that stands within a page."""
    with TemporaryDirectory(prefix="tandem-report-") as folder:
        file = Path(folder) / "chart.svg"
        load_plotter(file)(chart, file)
        text = file.read_text()
    return text[text.index("<svg") :]


@dataclass(frozen=True, slots=True)
class _HtmlTable:
    """A table of the terminal: each cell with whether it is a number."""

    title: str
    header: list[tuple[str, bool]]
    rows: list[list[tuple[str, bool]]]

    @classmethod
    def of(cls, table: Table) -> "_HtmlTable":
        right = [column.justify == "right" for column in table.columns]
        header = [(_plain(column.header), column.justify == "right") for column in table.columns]
        cells = [[_plain(cell) for cell in column.cells] for column in table.columns]
        rows = [list(zip(row, right, strict=True)) for row in zip(*cells, strict=True)]
        if not table.show_header:
            header = []
        return cls(_plain(table.title or ""), header, rows)


def _plain(cell: object) -> str:
    """Without markup and colours."""
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain
