"""`tandem simulate`: plays a recorded workload on a cluster that need not exist, and reports."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from tandem.commands.options import flag, flags, settings_flag, with_options
from tandem.commands.scenario import scenario_of
from tandem.commands.simulated_runs import Run, RunOutput, Trial, choices, print_runs
from tandem.commands.workloads import WorkloadOptions, overlong_notes
from tandem.config.cluster.file import (
    MOST_FAULTS_PER_HOUR,
    Cluster,
    bundled_clusters,
    read_cluster,
)
from tandem.facts.errors import InvalidConfiguration
from tandem.policy.routing.policies import ROUTINGS
from tandem.report.explain import explanation
from tandem.report.measured import parse_slo


@flags
class TrialOptions:
    """What is tried."""

    routing: str | None = flag(
        f"Routing policy; a list compares, all tries {', '.join(ROUTINGS)}.", default=None
    )
    slo: list[str] | None = flag(
        "The SLO, as ttft=2s,tpot=50ms. (default: the cluster's)", default=None
    )
    settings: list[str] | None = settings_flag("policies.admission=prediction")
    faults: list[str] | None = flag(
        "Adds a fault, as 'at: 30s, crash: decode-1, restart: 20s'.", default=None
    )
    fault_rate: float | None = flag(
        "Random faults an hour, drawn by the seed.", default=None, min=0.0, max=MOST_FAULTS_PER_HOUR
    )

    def variants(self, names: list[str], seed: int | None) -> dict[str, Cluster]:
        """Every cluster with every routing, under the label that tells it from the others; all with
        this seed if there is one. Raises `InvalidConfiguration`."""
        slo = parse_slo(self.slo or ())
        faults = tuple(_fault(text) for text in self.faults or ())
        variants: dict[str, Cluster] = {}
        names = list(dict.fromkeys(names))
        stems = [Path(name).stem for name in names]
        for name, stem in zip(names, stems, strict=True):
            if stems.count(stem) > 1:
                raise InvalidConfiguration(
                    f"two clusters are called {stem}; give one of the files another name"
                )
            cluster = read_cluster(name, self.settings or ())
            cluster = replace(cluster, faults=(*cluster.faults, *faults))
            if self.fault_rate is not None:
                cluster = replace(cluster, faults_per_hour=self.fault_rate)
            if seed is not None:
                cluster = replace(cluster, seed=seed)
            if not slo.empty:
                cluster = replace(cluster, slo=slo)
            own = cluster.policies.routing
            # Without the flag the cluster's own.
            tried = [own] if self.routing is None else choices("routing", self.routing, own)
            for routing in tried:
                policies = replace(cluster.policies, routing=routing)
                label = f"{stem} {routing.name}" if len(names) > 1 else routing.name
                variants[label] = replace(cluster, policies=policies)
        return variants


@flags
class SimulationOutput(RunOutput):
    """What comes out."""

    explain: str | None = flag("Tells the life of one request, by its id or number.", default=None)

    @property
    def keeps_decisions(self) -> bool:
        """Decisions cost memory and time, so they are kept for those who look at them."""
        return self.explain is not None or self.records is not None


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
    output: SimulationOutput,
) -> None:
    """Play a trace on a simulated cluster: the same policies as in production, in seconds.

    A list of speeds, routing policies or clusters compares them in one table.
    """
    trials = [
        Trial(label, cluster, speed, output.keeps_decisions)
        for label, cluster in tried.variants(clusters, workload.seed).items()
        for speed in workload.speeds()
    ]
    if output.explain is not None and len(trials) > 1:
        raise InvalidConfiguration("--explain looks at one run; give one cluster, routing, speed")
    # What is wrong with a cluster is told before any run begins.
    contexts = [scenario_of(trial.cluster).context_tokens for trial in trials]
    rows, notes = workload.rows()
    notes += overlong_notes(rows, contexts)
    runs = output.perform(trials, rows)
    console = Console()
    shown = [*_run_notes(runs, clusters), *notes]
    if output.explain is not None:
        console.print(explanation(runs[0].record, output.explain))
    else:
        print_runs(console, runs, shown)
    output.write(runs, notes, shown)


def _run_notes(runs: Sequence[Run], clusters: Sequence[str]) -> list[str]:
    """What was simulated and, where runs are compared, the SLO that they are compared by."""
    names = " and ".join(dict.fromkeys(Path(name).stem for name in clusters))
    if len(runs) == 1:
        trial = runs[0].trial
        return [f"{names}, routing {trial.cluster.policies.routing.name}, at {trial.speed:g}x"]
    slos = list(dict.fromkeys(str(run.terms.slo) for run in runs))
    slo = slos[0] if len(slos) == 1 else "each cluster's own"
    return [names, f"SLO {slo or 'none'}"]


def _fault(text: str) -> Mapping[str, object]:
    try:
        entry = yaml.safe_load(f"{{{text}}}")
    except yaml.YAMLError:
        entry = None
    if not isinstance(entry, dict) or None in entry.values():
        raise InvalidConfiguration(
            f"--faults must look like 'at: 30s, crash: decode-1, restart: 20s', got {text!r}"
        )
    return {str(key): value for key, value in entry.items()}
