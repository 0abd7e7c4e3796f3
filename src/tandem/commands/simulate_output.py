"""What `tandem simulate` shows and writes: tables, figures, records, plots."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from tandem.bench.results import write_bytes
from tandem.commands.simulate_runs import Trial
from tandem.config.cluster_hardware import pool_device
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo
from tandem.twin.comparison import Point, comparison_table, finding
from tandem.twin.plot_chart import Chart
from tandem.twin.plot_comparison import comparison_chart
from tandem.twin.plot_timeline import timeline
from tandem.twin.record import RunRecord
from tandem.twin.report import FORMAT_VERSION, canonical_json, run_tables
from tandem.twin.summary import DeviceTerms, Summary, Terms, summarise

Draw = Callable[[Chart, Path], None]
_PLOTTERS = {".html": "plot_html", ".png": "plot_png", ".svg": "plot_png", ".pdf": "plot_png"}


class Run:
    """One trial with its record, its terms and its summary."""

    def __init__(self, trial: Trial, record: RunRecord) -> None:
        self.trial = trial
        self.record = record
        self.terms = terms_of(trial)
        self.summary: Summary = summarise(record, self.terms)

    @property
    def point(self) -> Point:
        return Point(self.trial.label, self.trial.speed, self.summary)


def terms_of(trial: Trial) -> Terms:
    """What the trial's cluster promises, and what its devices cost."""
    cluster = trial.cluster
    devices: dict[str, DeviceTerms] = {}
    for pool in cluster.pools:
        device = pool_device(pool)
        terms = DeviceTerms(
            device.usd_per_hour, device.power.idle_w, device.power.prefill_w, device.power.decode_w
        )
        if devices.setdefault(pool.device, terms) != terms:
            raise InvalidConfiguration(
                f"pool {pool.name}: another pool has another price for {pool.device}; a device has "
                "one price"
            )
    by_class = {entry.name: entry.slo for entry in cluster.classes if not entry.slo.empty}
    return Terms(cluster.slo, by_class, devices)


def run_notes(runs: Sequence[Run], clusters: Sequence[str]) -> list[str]:
    """What was simulated and, where runs are compared, the SLO that they are compared by."""
    names = " and ".join(dict.fromkeys(Path(name).stem for name in clusters))
    if len(runs) == 1:
        trial = runs[0].trial
        return [f"{names}, routing {trial.cluster.policies.routing.name}, at {trial.speed:g}x"]
    promises = list(dict.fromkeys(str(run.terms.slo) for run in runs))
    told = promises[0] if len(promises) == 1 else "each cluster's own"
    return [names, f"SLO {told or 'none'}"]


def print_runs(console: Console, runs: Sequence[Run], notes: Sequence[str]) -> None:
    """One run in full, or all of them in one table."""
    points = [run.point for run in runs]
    if len(runs) == 1:
        title, *notes = notes
    else:
        title = finding(points)
    console.print(title, style="bold", markup=False, highlight=False)
    console.print("; ".join(notes) + "\n", style="dim", markup=False, highlight=False)
    if len(runs) > 1:
        console.print(comparison_table(points, console.width))
        return
    for table in run_tables(runs[0].summary, runs[0].terms):
        console.print(table)
        console.print()


def write_figures(path: Path, runs: Sequence[Run], notes: Sequence[str]) -> None:
    """Every figure of every run, canonically: the same runs write the same bytes."""
    document = {
        "format": FORMAT_VERSION,
        "workload": list(notes),
        "runs": [
            {
                "label": run.trial.label,
                "speed": run.trial.speed,
                "slo": run.terms.slo,
                "settings": run.record.settings,
                "summary": run.summary,
            }
            for run in runs
        ],
    }
    write_bytes(path, canonical_json(document), "--json")


def write_records(path: Path, runs: Sequence[Run]) -> None:
    """A JSON line for every request, then for every decision, of each run."""
    write_bytes(path, b"".join(_record_lines(runs)), "--records")


def _record_lines(runs: Sequence[Run]) -> Iterator[bytes]:
    for run in runs:
        of_run = {"label": run.trial.label, "speed": run.trial.speed}
        for kind, entries in (("request", run.record.requests), ("decision", run.record.decisions)):
            for entry in entries:
                yield canonical_json({"of": kind, **of_run, kind: entry})


def require_folder(path: Path | None, flag: str) -> None:
    """A file that cannot be written is told before the work that would fill it."""
    if path is not None and not path.parent.is_dir():
        raise InvalidConfiguration(f"{flag}: there is no folder {path.parent}; make it first")


def load_plotter(path: Path) -> Draw:
    """The `draw` of the library that a file's ending asks for, found before any run begins. The
    libraries are an extra, so they are imported only here and only when wanted."""
    require_folder(path, "--plot")
    module = _PLOTTERS.get(path.suffix.lower())
    if module is None:
        raise InvalidConfiguration(f"--plot must end in {', '.join(_PLOTTERS)}, got {path.name!r}")
    try:
        draw: Draw = importlib.import_module(f"tandem.twin.{module}").draw
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"--plot needs {error.name}: pip install tandem[bench]"
        ) from error
    return draw


def save_plot(draw: Draw, path: Path, runs: Sequence[Run], notes: Sequence[str]) -> None:
    """The timeline of one run, or the comparison of several."""
    subtitle = "; ".join(notes)
    slo = runs[0].terms.slo
    if len(runs) == 1:
        chart = timeline(runs[0].record, runs[0].summary, slo, subtitle)
    else:
        # A line for one cluster's slo would be read as everybody's.
        common = slo if all(run.terms.slo == slo for run in runs) else Slo()
        chart = comparison_chart([run.point for run in runs], common, subtitle)
    save_chart(draw, chart, path)


def save_chart(draw: Draw, chart: Chart, path: Path) -> None:
    """Raises `InvalidConfiguration` where the file cannot be written."""
    try:
        draw(chart, path)
    except OSError as error:
        raise InvalidConfiguration(f"--plot: cannot write {path}: {error.strerror}") from error
