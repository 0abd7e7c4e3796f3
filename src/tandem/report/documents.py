"""What runs leave in files: canonical JSON, results and records of a measured server, and plots.

Keys and records are read by other programs, and records can be replayed as a trace: names stay.
plotly and matplotlib are an extra and take long to import: what draws with them is imported here
alone, when somebody wants a plot.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

from tandem.facts.errors import InvalidConfiguration
from tandem.report.measured import LoadPoint, SweepPoint
from tandem.report.plots.chart import Chart
from tandem.report.record import MeasuredRequest

FORMAT_VERSION = 1
# Figures beyond this are noise of binary fractions, not knowledge.
_DIGITS = 9


def canonical_json(document: object) -> bytes:
    """One line with sorted keys and floats of nine significant digits: equal values, equal bytes.
    Instants and durations in nanoseconds become seconds, in name and value."""
    text = json.dumps(plain(document), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def plain(value: Any) -> Any:
    """A document of dictionaries, lists and numbers, as `canonical_json` tells it; what is neither
    stays as it is."""
    if is_dataclass(value):
        value = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    if isinstance(value, Mapping):
        return dict(_entry(str(key), item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _entry(key: str, value: Any) -> tuple[str, Any]:
    if key.endswith("_ns") and isinstance(value, int | float):
        # -1 stands for an instant that never came.
        return f"{key.removesuffix('_ns')}_s", None if value < 0 else plain(value / 1e9)
    return key, plain(value)


@dataclass(frozen=True)
class MeasuredResults:
    """A whole benchmark: enough to run it again and to compare it. Never holds the API key."""

    settings: Mapping[str, Any]
    server: Mapping[str, Any]
    started_utc: str
    runs: Sequence[SweepPoint]

    def write(self, path: Path) -> None:
        """JSON; durations in seconds. Raises `InvalidConfiguration` where it cannot be written."""
        document = {
            "format": FORMAT_VERSION,
            "started_utc": self.started_utc,
            "server": self.server,
            "settings": self.settings,
            "runs": [
                {
                    "load": {"rate_rps": _finite(run.load), "concurrency": run.load.concurrency},
                    "summary": plain(run.summary),
                    "requests": [measured_row(request) for request in run.requests],
                }
                for run in self.runs
            ],
        }
        write_json(path, document, "--output")


def write_measured_records(path: Path, runs: Sequence[SweepPoint]) -> None:
    """One JSON line a request. The names are those of our own traces: the file can be replayed."""
    encode = msgspec.json.encode
    lines = [encode(measured_row(request)) for run in runs for request in run.requests]
    write_file(path, b"".join(line + b"\n" for line in lines), "--records")


def measured_row(request: MeasuredRequest) -> dict[str, Any]:
    """One request as the files tell it, times in seconds to the microsecond."""
    return {
        "index": request.serial,
        "arrival_s": _seconds(request.due_ns),
        "sent_s": _seconds(request.arrival_ns),
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.emitted_tokens,
        "cached_tokens": request.cached_tokens,
        "ttft_s": _rounded(request.ttft_s),
        "tpot_s": _rounded(request.tpot_s),
        # Of those that failed, too: when it became clear.
        "latency_s": _seconds(request.end_ns - request.arrival_ns),
        "gaps_s": [_seconds(gap_ns) for gap_ns in request.gaps_ns],
        "finish_reason": request.finish_reason,
        "error": request.reason,
    }


def write_file(path: Path, content: bytes, flag: str) -> None:
    """Writes a file that a flag named; failing to is the caller's mistake. Raises
    `InvalidConfiguration`."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidConfiguration(f"{flag}: cannot write {path}: {error.strerror}") from error


def write_json(path: Path, document: object, flag: str) -> None:
    """Indented, for people too. Raises `InvalidConfiguration`."""
    encoded = msgspec.json.encode(document, enc_hook=str)
    write_file(path, msgspec.json.format(encoded, indent=1), flag)


def require_folder(path: Path | None, flag: str) -> None:
    """A file that cannot be written is told before the work that would fill it. Raises
    `InvalidConfiguration`."""
    if path is not None and not path.parent.is_dir():
        raise InvalidConfiguration(f"{flag}: there is no folder {path.parent}; make it first")


def _finite(load: LoadPoint) -> float | str | None:
    # JSON knows no infinity.
    return "inf" if load.rate_rps == float("inf") else load.rate_rps


def _seconds(duration_ns: int) -> float:
    return round(duration_ns / 1e9, 6)


def _rounded(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s, 6)


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


def save_chart(chart: Chart, path: Path, flag: str = "--plot") -> None:
    """Raises `InvalidConfiguration` as `load_plotter`, and where the file cannot be written."""
    draw = load_plotter(path, flag)
    try:
        draw(chart, path)
    except OSError as error:
        raise InvalidConfiguration(f"{flag}: cannot write {path}: {error.strerror}") from error
