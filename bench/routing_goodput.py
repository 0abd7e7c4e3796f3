"""Routing by predicted seconds beside the seven other policies: goodput below, at and past the knee
of several traces on several simulated clusters.

The knee of a trace is the highest speed at which 90 % of the requests keep the SLO with the policy
that keeps most; all policies then run at shares of that speed. Sessions of agents, whose next call
waits for the one before, make no more load when they are sped up: of them there are more instead,
and the knee is a number of copies of the trace.

Usage: python bench/routing_goodput.py TRACES [--processes 2] [--first 3000] [--only NAME]
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from published_runs import CONVERSATION, SURROGATE, SYNTHETIC, Bench
from tandem.bench.traces.shape import merge
from tandem.commands.simulated_runs import Run, Trial
from tandem.config.cluster.file import Cluster, read_cluster
from tandem.config.cluster.keys import Choice
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow
from tandem.policy.routing.policies import ROUTINGS

AZURE_CONVERSATION = "AzureLLMInferenceTrace_conv_2023.csv.gz"
AGENTS = "lmcache_agent_derived_hash64ch.jsonl.gz"
OURS = "cost"
# Those that look for a knee; the others have theirs sooner.
SEEKERS = ("cost", "weighted-score", "prefix-first", "block-cost", "least-load")
ATTAINMENT = 0.9
SHARES = (0.6, 0.9, 1.0, 1.2, 1.6)
HALVINGS = 3


@dataclass(frozen=True)
class Setting:
    """A trace on a cluster (with such `changes`), the SLO that its users want, and a load that is
    below its knee: a speed, or `copies` at the recorded speed times `speed`."""

    name: str
    cluster: str
    trace: str
    slo: Slo
    speed: float = 1.0
    copies: int = 0
    changes: tuple[str, ...] = ()

    @property
    def load(self) -> float:
        return self.copies or self.speed


SETTINGS = (
    Setting("conversation, 8P+8D", "mooncake-16", CONVERSATION, Slo(10.0, 0.05)),
    Setting("conversation, 16 aggregated", "aggregated-16", CONVERSATION, Slo(10.0, 0.1)),
    Setting("synthetic, 8P+8D", "mooncake-16", SYNTHETIC, Slo(10.0, 0.05), 0.5),
    Setting("tool and agent, 8P+8D", "mooncake-16", SURROGATE, Slo(10.0, 0.05)),
    Setting("Azure conversation, H100 + A100", "mixed", AZURE_CONVERSATION, Slo(1.0, 0.05)),
    Setting(
        "agents, tiers and shared pool",
        "tiers",
        AGENTS,
        Slo(2.0, 0.05),
        speed=4.0,
        copies=8,
        changes=("model=qwen3-32b", "pools.worker.tensor_parallel=2", "pools.worker.count=2"),
    ),
)


class Comparison:
    """The runs of one setting."""

    def __init__(self, bench: Bench, setting: Setting) -> None:
        self.setting = setting
        self._bench = bench
        self._cluster = replace(read_cluster(setting.cluster, setting.changes), slo=setting.slo)
        self._rows: Sequence[TraceRow] = bench.rows(setting.trace)

    def knee(self) -> float:
        """By doubling, then halving the step."""
        low, high = 0.0, self.setting.load
        while self._best_attainment(high) >= ATTAINMENT:
            low, high = high, 2 * high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self._best_attainment(middle) >= ATTAINMENT:
                low = middle
            else:
                high = middle
        return low or high

    def runs(self, load: float, policies: Sequence[str]) -> dict[str, Run]:
        """By policy."""
        rows, speed = self._rows, load
        if self.setting.copies:
            rows, speed = merge([rows] * round(load)), self.setting.speed
        trials = [Trial(name, self._routed(name), speed) for name in policies]
        return {run.trial.label: run for run in self._bench.play(trials, rows)}

    def _best_attainment(self, load: float) -> float:
        return max(run.summary.attainment or 0.0 for run in self.runs(load, SEEKERS).values())

    def _routed(self, name: str) -> Cluster:
        return replace(
            self._cluster, policies=replace(self._cluster.policies, routing=Choice(name))
        )


def show(comparison: Comparison, knee: float, console: Console) -> float:
    """The table of one setting; gives the worst ratio of ours to the best."""
    loads = [share * knee for share in SHARES]
    runs = {load: comparison.runs(load, list(ROUTINGS)) for load in loads}
    slo = comparison.setting.slo
    what = f"{knee:.0f} copies" if comparison.setting.copies else f"speed {knee:.2f}"
    table = Table(title=f"{comparison.setting.name} ({slo}); knee at {what}")
    table.add_column("goodput, requests/s (share)")
    for share in SHARES:
        table.add_column(f"{share:g} of the knee", justify="right")
    worst = 1.0
    best = {load: max(run.summary.goodput_rps for run in runs[load].values()) for load in loads}
    for name in ROUTINGS:
        cells = []
        for load in loads:
            summary = runs[load][name].summary
            cells.append(f"{summary.goodput_rps:.2f} ({summary.attainment or 0:.0%})")
        table.add_row(name, *cells)
    ratios = [runs[load][OURS].summary.goodput_rps / (best[load] or 1) for load in loads]
    table.add_row(f"{OURS} / best", *(f"{ratio:.3f}" for ratio in ratios), style="bold")
    console.print(table)
    return min([worst, *ratios])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first", type=int, default=3000, help="rows of each trace")
    parser.add_argument("--only", default="", help="settings whose name has this text")
    wishes = parser.parse_args()
    console = Console(width=130)
    bench = Bench(wishes.traces, wishes.processes, wishes.first)
    for setting in SETTINGS:
        if wishes.only in setting.name:
            comparison = Comparison(bench, setting)
            worst = show(comparison, comparison.knee(), console)
            console.print(f"{OURS} is at worst at {worst:.3f} of the best\n", highlight=False)


if __name__ == "__main__":
    main()
