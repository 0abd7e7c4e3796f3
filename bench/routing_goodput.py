"""Routing by predicted seconds beside the seven other policies: goodput below, at and past the knee
of several traces on several simulated clusters.

The knee of a trace is the highest speed at which 90 % of the requests keep the SLO with the policy
that keeps most; all policies then run at shares of that speed.

Usage: python bench/routing_goodput.py TRACES [--processes 2] [--first 3000] [--only NAME]
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from published_runs import CONVERSATION, SURROGATE, SYNTHETIC, Bench
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
    """A trace on a cluster, with the SLO that its users want and a speed that is below its knee."""

    name: str
    cluster: str
    trace: str
    slo: Slo
    speed: float = 1.0


SETTINGS = (
    Setting("conversation, 8P+8D", "mooncake-16", CONVERSATION, Slo(10.0, 0.05)),
    Setting("conversation, 16 aggregated", "aggregated-16", CONVERSATION, Slo(10.0, 0.1)),
    Setting("synthetic, 8P+8D", "mooncake-16", SYNTHETIC, Slo(10.0, 0.05), 0.5),
    Setting("tool and agent, 8P+8D", "mooncake-16", SURROGATE, Slo(10.0, 0.05)),
    Setting("Azure conversation, H100 + A100", "mixed", AZURE_CONVERSATION, Slo(1.0, 0.05)),
    Setting("agents, tiers and shared pool", "tiers", AGENTS, Slo(2.0, 0.05), 0.25),
)


class Comparison:
    """The runs of one setting."""

    def __init__(self, bench: Bench, setting: Setting) -> None:
        self.setting = setting
        self._bench = bench
        self._cluster = replace(read_cluster(setting.cluster), slo=setting.slo)
        self._rows: Sequence[TraceRow] = bench.rows(setting.trace)

    def knee(self) -> float:
        """By doubling, then halving the step."""
        low, high = 0.0, self.setting.speed
        while self._best_attainment(high) >= ATTAINMENT:
            low, high = high, 2 * high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self._best_attainment(middle) >= ATTAINMENT:
                low = middle
            else:
                high = middle
        return low or high

    def runs(self, speeds: Sequence[float], policies: Sequence[str]) -> list[Run]:
        trials = [Trial(name, self._routed(name), speed) for speed in speeds for name in policies]
        return self._bench.play(trials, self._rows)

    def _best_attainment(self, speed: float) -> float:
        return max(run.summary.attainment or 0.0 for run in self.runs([speed], SEEKERS))

    def _routed(self, name: str) -> Cluster:
        return replace(
            self._cluster, policies=replace(self._cluster.policies, routing=Choice(name))
        )


def show(comparison: Comparison, knee: float, console: Console) -> float:
    """The table of one setting; gives the worst ratio of ours to the best."""
    speeds = [share * knee for share in SHARES]
    runs = comparison.runs(speeds, list(ROUTINGS))
    by_place = {(run.trial.label, run.trial.speed): run for run in runs}
    slo = comparison.setting.slo
    table = Table(title=f"{comparison.setting.name} ({slo}); knee at speed {knee:.2f}")
    table.add_column("goodput, requests/s (share)")
    for share in SHARES:
        table.add_column(f"{share:g} of the knee", justify="right")
    worst = 1.0
    best = {
        speed: max(by_place[name, speed].summary.goodput_rps for name in ROUTINGS)
        for speed in speeds
    }
    for name in ROUTINGS:
        cells = []
        for speed in speeds:
            summary = by_place[name, speed].summary
            cells.append(f"{summary.goodput_rps:.2f} ({summary.attainment or 0:.0%})")
        table.add_row(name, *cells)
    ratios = [by_place[OURS, speed].summary.goodput_rps / (best[speed] or 1) for speed in speeds]
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
