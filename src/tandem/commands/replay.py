"""`tandem replay`: plays a gateway's journal, as it was decided or as others would have decided."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from tandem.commands.options import with_options
from tandem.commands.replay_trials import Otherwise, recorded_run, recorded_shape, trials_of
from tandem.commands.simulate import perform
from tandem.commands.simulate_output import (
    Run,
    print_runs,
    save_plot,
    write_figures,
    write_records,
)
from tandem.config.environment import host_facts
from tandem.config.journal import recorded_cluster
from tandem.facts.errors import InvalidConfiguration
from tandem.live.processes.journal import recorded_machine
from tandem.observe.journal.files import JournalRun, open_journal
from tandem.observe.journal.history import History, trace_rows
from tandem.observe.journal.replay import Comparison, Difference, compare, turns_of
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.planning.registry import PLANNINGS
from tandem.policy.routing.policies import ROUTINGS
from tandem.report.documents import require_folder
from tandem.report.plots.libraries import load_plotter

DIFFERENT = 1


@dataclass(frozen=True)
class OtherwiseOptions:
    """What is to be decided otherwise."""

    routing: Annotated[
        str | None,
        typer.Option(help=f"What other routing would have done: {', '.join(ROUTINGS)}; or a list."),
    ] = None
    admission: Annotated[
        str | None, typer.Option(help=f"Other admission: {', '.join(ADMISSIONS)}; or a list.")
    ] = None
    planning: Annotated[
        str | None, typer.Option(help=f"Another planner: {', '.join(PLANNINGS)}; or a list.")
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Changes the cluster, as pools.decode.count=4."),
    ] = None
    slo: Annotated[
        list[str] | None,
        typer.Option("--slo", help="The SLO, as ttft=2s,tpot=50ms. (default: the recorded)"),
    ] = None

    @property
    def wanted(self) -> bool:
        return self != OtherwiseOptions()

    def tried(self) -> Otherwise:
        """What of it makes runs of its own."""
        return Otherwise(self.routing, self.admission, self.planning, self.slo or ())


@dataclass(frozen=True)
class ReplayOutput:
    """What comes out."""

    plot: Annotated[
        Path | None, typer.Option(help="Draws the comparison: .html or .png. It simulates.")
    ] = None
    json: Annotated[
        Path | None, typer.Option("--json", help="Writes every figure. It simulates.")
    ] = None
    records: Annotated[
        Path | None, typer.Option(help="Writes every request, a JSON line each. It simulates.")
    ] = None
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time. (default: one a core)")
    ] = None
    progress: Annotated[bool, typer.Option(help="Show how far the runs are.")] = True

    @property
    def wanted(self) -> bool:
        """Whether there is something to show that only a simulation has."""
        return any((self.plot, self.json, self.records))


@with_options
def replay_command(
    journal: Annotated[
        Path,
        typer.Argument(
            metavar="JOURNAL", help="A file of a gateway's journal, or the folder of such files."
        ),
    ],
    otherwise: OtherwiseOptions,
    output: ReplayOutput,
) -> None:
    """Play what a gateway recorded.

    Without options its decisions are made again and compared with those that were recorded. With
    other policies the recorded workload is simulated: what would have happened instead.
    """
    run = open_journal(journal)
    console = Console()
    for other in run.others:
        console.print(f"[dim]not played: {other}[/dim]", soft_wrap=True)
    with TemporaryDirectory(prefix="tandem-replay-") as folder:
        if otherwise.wanted or output.wanted:
            _simulate(run, otherwise, output, Path(folder), console)
        else:
            _compare(run, Path(folder), console)


def _compare(run: JournalRun, folder: Path, console: Console) -> None:
    """Exits with a code of its own where a decision is another one."""
    if not run.whole:
        raise InvalidConfiguration(
            f"{run.name}: its first files are gone, so that the state of the gateway at the "
            f"beginning of {run.files[0].path.name} is not known; play it with --routing, or keep "
            "more files (journal.keep)"
        )
    cluster = recorded_cluster(run.head.cluster, run.head.files, folder)
    done = compare(run.records(), *recorded_machine(run.head, cluster))
    for line in _told(run, done):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if done.difference is not None:
        raise typer.Exit(DIFFERENT)


def _told(run: JournalRun, done: Comparison) -> list[str]:
    played = (
        f"{run.name}: {done.requests:,} requests ({done.rejected:,} rejected), {done.events:,} "
        f"events in {done.seconds:,.1f} s"
    )
    lines = [played]
    if done.difference is None:
        lines.append(f"{done.decisions:,} decisions, all equal")
    else:
        lines += _difference(done, done.difference)
    if done.missing_ns is not None:
        after_s = (done.missing_ns - (done.first_ns or done.missing_ns)) / 1e9
        some = f"{done.missing_turns:,}" if done.missing_turns else "some"
        lines.append(
            f"exact up to {after_s:.1f} s: {some} turns are missing there, and nothing after them "
            "was compared"
        )
    return lines


def _difference(done: Comparison, found: Difference) -> list[str]:
    after_s = (found.at_ns - (done.first_ns or found.at_ns)) / 1e9
    lines = [
        f"{done.decisions:,} decisions; the first that differs was made after {after_s:.3f} s "
        f"(turn {found.turn})",
        f"  recorded: {_decision(found.recorded)}",
        f"  replayed: {_decision(found.replayed)}",
    ]
    for each in found.explained:
        figures = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in each.figures
        )
        after = f" ({figures})" if figures else ""
        lines.append(f"  {each.kind} of {each.request_id}: {each.text}{after}")
    return lines


def _decision(told: str | int | None) -> str:
    if told is None:
        return "nothing more"
    return f"tokens of {told} requests go to clients" if isinstance(told, int) else told


def _simulate(
    run: JournalRun,
    otherwise: OtherwiseOptions,
    output: ReplayOutput,
    folder: Path,
    console: Console,
) -> None:
    draw = None if output.plot is None else load_plotter(output.plot)
    require_folder(output.json, "--json")
    require_folder(output.records, "--records")
    history = History(run.head, turns_of(run.records()))
    rows = trace_rows(history)
    if not rows:
        raise InvalidConfiguration(f"{run.name}: no request was recorded")
    head, settings = run.head, otherwise.settings or ()
    configured = recorded_cluster(head.cluster, head.files, folder)
    changed = recorded_cluster(head.cluster, head.files, folder, settings)
    shape = recorded_shape(configured, changed, history)
    trials = trials_of(shape, otherwise.tried())
    slo = trials[0].cluster.slo
    records = perform(trials, rows, output.processes or host_facts().cores, output.progress)
    runs = [
        recorded_run(recorded_shape(configured, configured, history), slo, history),
        *(Run(trial, record) for trial, record in zip(trials, records, strict=True)),
    ]
    notes = [run.name, *_notes(run, history)]
    print_runs(console, runs, notes, references=1)
    if output.json is not None:
        write_figures(output.json, runs, notes)
    if output.records is not None:
        write_records(output.records, runs)
    if draw is not None and output.plot is not None:
        save_plot(draw, output.plot, runs, notes)


def _notes(run: JournalRun, history: History) -> list[str]:
    notes = [f"{len(history.requests):,} requests in {history.seconds:,.1f} s"]
    if not run.whole:
        notes.append("the first files of the run are gone")
    return notes
