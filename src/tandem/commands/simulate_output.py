"""What `tandem simulate` shows and writes: tables, figures, records, plots."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from tandem.commands.simulate_runs import Trial
from tandem.config.hardware.pools import pool_device
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo
from tandem.report.comparison import Point, comparison_table, finding
from tandem.report.documents import FORMAT_VERSION, canonical_json, write_file
from tandem.report.plots.comparison import comparison_chart
from tandem.report.plots.libraries import Draw, save_chart
from tandem.report.plots.timeline import timeline
from tandem.report.record import RunRecord
from tandem.report.summary import DeviceTerms, Summary, Terms, summarise
from tandem.report.tables import cluster_tables


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
    """The SLO of the trial's cluster, and what its devices cost."""
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
    slos = list(dict.fromkeys(str(run.terms.slo) for run in runs))
    told = slos[0] if len(slos) == 1 else "each cluster's own"
    return [names, f"SLO {told or 'none'}"]


def print_runs(
    console: Console, runs: Sequence[Run], notes: Sequence[str], references: int = 0
) -> None:
    """One run in full, or all of them in one table: the first so many `references` are shown, and
    not held against the others."""
    points = [run.point for run in runs]
    if len(runs) - references < 2:
        title, *notes = notes
    else:
        title = finding(points[references:])
    console.print(title, style="bold", markup=False, highlight=False)
    console.print("; ".join(notes) + "\n", style="dim", markup=False, highlight=False)
    if len(runs) > 1:
        console.print(comparison_table(points, console.width))
        return
    for table in cluster_tables(runs[0].summary, runs[0].terms):
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
    write_file(path, canonical_json(document), "--json")


def write_records(path: Path, runs: Sequence[Run]) -> None:
    """A JSON line for every request, then for every decision, of each run."""
    write_file(path, b"".join(_record_lines(runs)), "--records")


def _record_lines(runs: Sequence[Run]) -> Iterator[bytes]:
    for run in runs:
        of_run = {"label": run.trial.label, "speed": run.trial.speed}
        for kind, entries in (("request", run.record.requests), ("decision", run.record.decisions)):
            for entry in entries:
                yield canonical_json({"of": kind, **of_run, kind: entry})


def save_plot(draw: Draw, path: Path, runs: Sequence[Run], notes: Sequence[str]) -> None:
    """The timeline of one run, or the comparison of several."""
    subtitle = "; ".join(notes)
    slo = runs[0].terms.slo
    if len(runs) == 1:
        chart = timeline(runs[0].record, runs[0].summary, slo, subtitle)
    else:
        # A line for one cluster's SLO would be read as everybody's.
        common = slo if all(run.terms.slo == slo for run in runs) else Slo()
        chart = comparison_chart([run.point for run in runs], common, subtitle)
    save_chart(draw, chart, path)
