"""Simulated runs of `tandem simulate` and `tandem replay`: performed several at a time in processes
of their own (each is the same whichever process performs it), shown, written and drawn."""

from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TaskProgressColumn

from tandem.bench.traces.shape import speed
from tandem.commands.options import flag, flags
from tandem.commands.scenario import scenario_of, with_blocks, with_random_faults
from tandem.commands.terminal import print_title, progress_bars
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.keys import Choice
from tandem.config.environment import host_facts
from tandem.config.hardware.pools import pool_device
from tandem.facts.errors import InvalidConfiguration, nearest
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.planning.policies import PLANNINGS
from tandem.policy.routing.policies import ROUTINGS
from tandem.report.comparison import Point, comparison_table, finding
from tandem.report.documents import (
    FORMAT_VERSION,
    canonical_json,
    load_plotter,
    require_folder,
    save_chart,
    write_file,
)
from tandem.report.plots.chart import Chart
from tandem.report.plots.simulated import comparison_chart, timeline
from tandem.report.record import RunRecord
from tandem.report.summary import DeviceTerms, Summary, Terms, summarise
from tandem.report.tables import cluster_tables
from tandem.twin.simulation import simulate

_POLL_S = 0.2
# Kinds of policies that runs are compared by.
REGISTRIES: Mapping[str, Mapping[str, object]] = {
    "routing": ROUTINGS,
    "admission": ADMISSIONS,
    "planning": PLANNINGS,
}

# Called with how far each run is, 0 to 1.
Progress = Callable[[Sequence[float]], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """One run to perform: a labelled cluster at one speed of the trace. A worker of a pool has so
    many `kv_blocks`; where they are not given, what the file's figures leave for them."""

    label: str
    cluster: Cluster
    speed: float
    keeps_decisions: bool = False
    kv_blocks: Mapping[str, int] = field(default_factory=dict)


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


def choices(kind: str, names: str, own: Choice) -> list[Choice]:
    """The policies of a flag: a list as `cost,round-robin`, or `all`. The cluster's own one has its
    parameters. Raises `InvalidConfiguration`."""
    known = REGISTRIES[kind]
    chosen = list(known) if names == "all" else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in known:
            raise InvalidConfiguration(f"--{kind}: unknown {name}{nearest(name, known)}")
    return [own if name == own.name else Choice(name) for name in chosen]


@dataclass(frozen=True, slots=True)
class _Jobs:
    """What a process needs for its runs; `done` holds the progress of each."""

    trials: Sequence[Trial]
    rows: Sequence[TraceRow]
    done: MutableSequence[float]
    progress: Progress

    def perform(self, place: int) -> RunRecord:
        trial = self.trials[place]

        def report(share: float) -> None:
            self.done[place] = share
            self.progress(self.done)

        rows = speed(self.rows, trial.speed)
        scenario = with_blocks(scenario_of(trial.cluster, trial.keeps_decisions), trial.kv_blocks)
        if trial.cluster.faults_per_hour:
            scenario = with_random_faults(scenario, trial.cluster, rows[-1].arrival_s)
        record = simulate(scenario, rows, report)
        report(1.0)
        return record


# One process has one set of jobs, given when it starts rather than with every run.
_own_jobs: list[_Jobs] = []


def run_trials(
    trials: Sequence[Trial], rows: Sequence[TraceRow], processes: int, progress: Progress
) -> list[RunRecord]:
    """The records, in order of the trials."""
    count = min(processes, len(trials))
    if count == 1:
        jobs = _Jobs(trials, rows, [0.0] * len(trials), progress)
        return [jobs.perform(place) for place in range(len(trials))]
    context = get_context("spawn")
    done: Any = context.Array("d", len(trials))
    with ProcessPoolExecutor(count, context, _start, (trials, rows, done)) as pool:
        futures = [pool.submit(_perform, place) for place in range(len(trials))]
        waiting = set(futures)
        while waiting:
            _, waiting = wait(waiting, _POLL_S, FIRST_COMPLETED)
            progress(list(done))
        return [future.result() for future in futures]


def _start(trials: Sequence[Trial], rows: Sequence[TraceRow], done: MutableSequence[float]) -> None:
    _own_jobs.append(_Jobs(trials, rows, done, lambda _: None))


def _perform(place: int) -> RunRecord:
    return _own_jobs[0].perform(place)


@flags
class RunOutput:
    """What comes out. Files beside the table, which are written if they are named, and how the runs
    are performed. Raises `InvalidConfiguration` for a file that cannot be made, before any run
    begins."""

    processes: int | None = flag(
        "Runs at the same time. (default: one a core)", default=None, min=1
    )
    json: Path | None = flag("Writes every figure.", default=None)
    records: Path | None = flag(
        "Writes every request and decision, a JSON line each.", default=None
    )
    plot: Path | None = flag("Draws the run or the comparison: .html or .png.", default=None)
    progress: bool = flag("Show how far the runs are.", default=True)

    def __post_init__(self) -> None:
        if self.plot is not None:
            load_plotter(self.plot)
        require_folder(self.json, "--json")
        require_folder(self.records, "--records")

    @property
    def writes_files(self) -> bool:
        return any((self.plot, self.json, self.records))

    def perform(self, trials: Sequence[Trial], rows: Sequence[TraceRow]) -> list[Run]:
        """In order of the trials; a terminal shows how far they are."""
        processes = self.processes or host_facts().cores
        with progress_bars(self.progress, TaskProgressColumn()) as progress:
            what = trials[0].label if len(trials) == 1 else f"{len(trials)} runs"
            bar = progress.add_task(what, total=len(trials))
            records = run_trials(
                trials, rows, processes, lambda done: progress.update(bar, completed=sum(done))
            )
        return [Run(trial, record) for trial, record in zip(trials, records, strict=True)]

    def write(self, runs: Sequence[Run], notes: Sequence[str], subtitle: Sequence[str]) -> None:
        """Whatever is wanted; `subtitle` is that of a plot."""
        if self.json is not None:
            write_figures(self.json, runs, notes)
        if self.records is not None:
            write_file(self.records, b"".join(_record_lines(runs)), "--records")
        if self.plot is not None:
            save_chart(_chart(runs, "; ".join(subtitle)), self.plot)


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
    print_title(console, title, "; ".join(notes))
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


def _record_lines(runs: Sequence[Run]) -> Iterator[bytes]:
    for run in runs:
        of_run = {"label": run.trial.label, "speed": run.trial.speed}
        for kind, entries in (("request", run.record.requests), ("decision", run.record.decisions)):
            for entry in entries:
                yield canonical_json({"of": kind, **of_run, kind: entry})


def _chart(runs: Sequence[Run], subtitle: str) -> Chart:
    """The timeline of one run, or the comparison of several."""
    slo = runs[0].terms.slo
    if len(runs) == 1:
        return timeline(runs[0].record, runs[0].summary, slo, subtitle)
    # A line for one cluster's SLO would be read as everybody's.
    common = slo if all(run.terms.slo == slo for run in runs) else Slo()
    return comparison_chart([run.point for run in runs], common, subtitle)
