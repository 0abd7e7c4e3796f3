"""The one place that chooses a drawing library, and imports it only when somebody wants a plot.

plotly and matplotlib are an extra and take long to import, so no module above imports what draws
with them.
"""

from collections.abc import Callable
from pathlib import Path

from tandem.facts.errors import InvalidConfiguration
from tandem.report.documents import require_folder
from tandem.report.plots.chart import Chart

Draw = Callable[[Chart, Path], None]
_ENDINGS = (".html", ".png", ".svg", ".pdf")


def load_plotter(path: Path, flag: str = "--plot") -> Draw:
    """What draws a file of this ending, found before any run begins. Raises `InvalidConfiguration`
    for another ending, a folder that is not there, or a library that is not installed."""
    require_folder(path, flag)
    ending = path.suffix.lower()
    if ending not in _ENDINGS:
        raise InvalidConfiguration(f"{flag} must end in {', '.join(_ENDINGS)}, got {path.name!r}")
    try:
        if ending == ".html":
            from tandem.report.plots.html import draw
        else:
            from tandem.report.plots.png import draw
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"{flag} needs {error.name}: pip install tandem[bench]"
        ) from error
    return draw


def save_chart(draw: Draw, chart: Chart, path: Path, flag: str = "--plot") -> None:
    """Raises `InvalidConfiguration` where the file cannot be written."""
    try:
        draw(chart, path)
    except OSError as error:
        raise InvalidConfiguration(f"{flag}: cannot write {path}: {error.strerror}") from error
