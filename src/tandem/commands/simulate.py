"""`tandem simulate`: plays a recorded workload on a cluster that need not exist, and reports."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from tandem.commands.options import with_options
from tandem.commands.simulate_options import (
    OutputOptions,
    TrialOptions,
    WorkloadOptions,
    overlong_notes,
)
from tandem.commands.simulate_output import (
    Run,
    print_runs,
    run_notes,
    save_plot,
    write_figures,
    write_records,
)
from tandem.commands.simulate_runs import Trial, run_trials
from tandem.commands.simulate_scenario import scenario_of
from tandem.config.cluster.file import bundled_clusters
from tandem.config.environment import host_facts
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow
from tandem.report.documents import require_folder
from tandem.report.explain import explanation
from tandem.report.plots.libraries import load_plotter
from tandem.report.record import RunRecord


@with_options
def simulate_command(
    clusters: Annotated[
        list[str],
        typer.Argument(
            metavar="CLUSTER",
            help=f"A cluster file, or one of {', '.join(bundled_clusters())}.",
        ),
    ],
    workload: WorkloadOptions,
    tried: TrialOptions,
    output: OutputOptions,
) -> None:
    """Play a trace on a simulated cluster: the same policies as in production, in seconds.

    A list of speeds, routing policies or clusters compares them in one table.
    """
    draw = None if output.plot is None else load_plotter(output.plot)
    trials = [
        Trial(label, cluster, speed, output.keeps_decisions)
        for label, cluster in tried.variants(clusters, workload.seed).items()
        for speed in workload.speeds()
    ]
    if output.explain is not None and len(trials) > 1:
        raise InvalidConfiguration("--explain looks at one run; give one cluster, routing, speed")
    # What is wrong with a cluster is told before any run begins.
    contexts = [scenario_of(trial.cluster).context_tokens for trial in trials]
    require_folder(output.json, "--json")
    require_folder(output.records, "--records")
    rows, notes = workload.rows()
    notes += overlong_notes(rows, contexts)
    records = perform(trials, rows, output.processes or host_facts().cores, output.progress)
    runs = [Run(trial, record) for trial, record in zip(trials, records, strict=True)]
    console = Console()
    shown = [*run_notes(runs, clusters), *notes]
    if output.explain is not None:
        console.print(explanation(records[0], output.explain))
    else:
        print_runs(console, runs, shown)
    if output.json is not None:
        write_figures(output.json, runs, notes)
    if output.records is not None:
        write_records(output.records, runs)
    if draw is not None and output.plot is not None:
        save_plot(draw, output.plot, runs, shown)


def perform(
    trials: Sequence[Trial], rows: Sequence[TraceRow], processes: int, shows_progress: bool
) -> list[RunRecord]:
    """The records, in order of the trials; a terminal shows how far they are."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (shows_progress and console.is_terminal),
    ) as progress:
        what = trials[0].label if len(trials) == 1 else f"{len(trials)} runs"
        bar = progress.add_task(what, total=len(trials))
        return run_trials(
            trials,
            rows,
            processes,
            lambda done: progress.update(bar, completed=sum(done)),
        )
