"""`tandem replay`: plays a gateway's journal, as it was decided or as others would have decided."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from tandem.commands.options import flag, flags, settings_flag, with_options
from tandem.commands.recorded_history import RecordedHistory, read_history
from tandem.commands.recorded_runs import recorded_run, recorded_shape, trials_of
from tandem.commands.simulated_runs import REGISTRIES, RunOutput, print_runs
from tandem.config.journal import recorded_cluster
from tandem.facts.errors import InvalidConfiguration
from tandem.live.processes.journal import recorded_machine
from tandem.observe.journal.files import JournalRun, open_journal
from tandem.observe.journal.history import trace_rows
from tandem.observe.journal.replay import Comparison, Difference, compare
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.planning.policies import PLANNINGS
from tandem.policy.routing.policies import ROUTINGS

DIFFERENT = 1
# How a simulation of the recorded cluster is called beside those of a changed one.
UNCHANGED = "unchanged"


@flags
class OtherwiseOptions:
    """What is to be decided otherwise."""

    routing: str | None = flag(
        f"What other routing would have done: {', '.join(ROUTINGS)}; or a list.", default=None
    )
    admission: str | None = flag(
        f"Other admission: {', '.join(ADMISSIONS)}; or a list.", default=None
    )
    planning: str | None = flag(
        f"Another planner: {', '.join(PLANNINGS)}; or a list.", default=None
    )
    settings: list[str] | None = settings_flag("pools.decode.count=4")
    slo: list[str] | None = flag(
        "The SLO, as ttft=2s,tpot=50ms. (default: the recorded)", default=None
    )

    last: float | None = flag(
        "Only requests that arrived in the last so many seconds. (default: all)",
        default=None,
        metavar="SECONDS",
        min=0.001,
        show_default=False,
    )

    @property
    def wanted(self) -> bool:
        return self != OtherwiseOptions()

    @property
    def policies(self) -> dict[str, str]:
        """Lists of names as `cost,round-robin`, by the kind of policy."""
        named = {kind: getattr(self, kind) for kind in REGISTRIES}
        return {kind: names for kind, names in named.items() if names is not None}


@with_options
def replay_command(
    journal: Annotated[
        Path,
        typer.Argument(
            metavar="JOURNAL", help="A file of a gateway's journal, or the folder of such files."
        ),
    ],
    otherwise: OtherwiseOptions,
    output: RunOutput,
) -> None:
    """Play what a gateway recorded.

    Without options its decisions are made again and compared with those that were recorded. With
    other policies the recorded workload is simulated: what would have happened instead, where the
    journal is a folder to the requests of all gateways that kept theirs in it meanwhile. A plot and
    the files of figures and records are of a simulation, too.
    """
    console = Console()
    with TemporaryDirectory(prefix="tandem-replay-") as folder:
        if otherwise.wanted or output.writes_files:
            read = read_history(journal, Path(folder))
            _print_left_out(console, read.left_out)
            _simulate(read, otherwise, output, Path(folder), console)
        else:
            run = open_journal(journal)
            _print_left_out(console, run.others)
            _compare(run, Path(folder), console)


def _compare(run: JournalRun, folder: Path, console: Console) -> None:
    """Exits with a code of its own where a decision is another one."""
    if not run.whole:
        raise InvalidConfiguration(
            f"{run.name}: its first files are gone, so that the state of the gateway at the "
            f"beginning of {run.files[0].path.name} is not known; play it with --routing, or keep "
            "more files (journal.keep)"
        )
    done = compare(run.records(), *recorded_machine(run.head, folder))
    for line in _outcome_lines(run, done):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if done.difference is not None:
        raise typer.Exit(DIFFERENT)


def _outcome_lines(run: JournalRun, done: Comparison) -> list[str]:
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


def _decision(decided: str | int | None) -> str:
    if decided is None:
        return "nothing more"
    return f"tokens of {decided} requests go to clients" if isinstance(decided, int) else decided


def _simulate(
    read: RecordedHistory,
    otherwise: OtherwiseOptions,
    output: RunOutput,
    folder: Path,
    console: Console,
) -> None:
    history, configured, names = read.history, read.cluster, ", ".join(read.names)
    if otherwise.last is not None:
        history.keep_last(otherwise.last)
    rows = trace_rows(history)
    if not rows:
        when = "" if otherwise.last is None else f" in the last {otherwise.last:g} s"
        raise InvalidConfiguration(f"{names}: no request was recorded{when}")
    head, settings = read.run.head, otherwise.settings or ()
    changed = recorded_cluster(head.cluster, head.files, folder, settings)
    shape = recorded_shape(configured, changed, history)
    trials = trials_of(
        shape,
        otherwise.policies,
        otherwise.slo or (),
        keeps_decisions=output.records is not None,
    )
    if settings:
        # Beside what is changed: how far the simulator is from what was recorded.
        as_it_was = recorded_shape(configured, configured, history)
        (unchanged,) = trials_of(as_it_was, {}, otherwise.slo or (), keeps_decisions=False)
        trials.insert(0, replace(unchanged, label=UNCHANGED))
    slo = trials[0].cluster.slo
    simulated = output.perform(trials, rows)
    recorded = recorded_run(recorded_shape(configured, configured, history), slo, history)
    runs = [recorded, *simulated]
    notes = [names, *_notes(read)]
    print_runs(console, runs, notes, references=1)
    output.write(runs, notes, notes)


def _notes(read: RecordedHistory) -> list[str]:
    history = read.history
    notes = [f"{len(history.requests):,} requests in {history.seconds:,.1f} s"]
    if not all(run.whole for run in (read.run, *read.joined)):
        notes.append("the first files of a run are gone")
    return notes


def _print_left_out(console: Console, runs: Iterable[str]) -> None:
    for name in runs:
        console.print(f"[dim]not played: {name}[/dim]", soft_wrap=True)
