"""A load that shifts from long prompts to long answers and back: the planner beside every static
split of the same workers, in the simulator.

Usage: python bench/shifting_load.py [--phase 300] [--workers 4] [--seed 1]
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console
from rich.table import Table

from tandem.commands.simulated_runs import Run, Trial, run_trials
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.keys import Choice
from tandem.config.cluster.workers import PoolConfig
from tandem.config.environment import host_facts
from tandem.facts.fleet import Role
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow

SIMULATED = "tandem, simulate"
FORMULAS = "tandem, formulas"


@dataclass(frozen=True)
class Phase:
    """A stretch of one kind of requests: so many a second for each worker of the cluster, by
    Poisson, with lengths spread evenly from half to one and a half of these means."""

    rate_per_s: float
    prompt_tokens: int
    output_tokens: int


# For workers of four H100 with Llama-3-70B each: a prompt of 8,000 tokens takes half a second, and
# 32 answers run at a time. Of four workers the first phase needs three to prefill, the second three
# to decode.
LONG_PROMPTS = Phase(1.05, 8_000, 60)
LONG_ANSWERS = Phase(2.0, 300, 600)
SLO = Slo(ttft_s=3.0, tpot_s=0.02)


def shifting(phases: Sequence[Phase], phase_s: float, workers: int, seed: int) -> list[TraceRow]:
    """The phases one after the other, each for `phase_s`."""
    chance = np.random.default_rng(seed)
    rows = []
    for number, phase in enumerate(phases):
        at_s = number * phase_s
        gap_s = 1 / phase.rate_per_s / workers
        while (at_s := at_s + chance.exponential(gap_s)) < (number + 1) * phase_s:
            prompt, output = (
                max(8, round(mean * chance.uniform(0.5, 1.5)))
                for mean in (phase.prompt_tokens, phase.output_tokens)
            )
            rows.append(TraceRow(at_s, prompt, output))
    return rows


def split(prefill: int, decode: int) -> Cluster:
    """So many workers of each role, for ever."""
    worker = PoolConfig("p", "h100", Role.PREFILL, tensor_parallel=4, max_num_seqs=32)
    pools = (
        replace(worker, count=prefill, min_count=prefill),
        replace(worker, name="d", role=Role.DECODE, count=decode, min_count=decode),
    )
    return Cluster(model="llama-3-70b", pools=pools, slo=SLO)


def planned(workers: int, *, simulate: bool) -> Cluster:
    """As many workers, half of each role at first, that the planner may flip and not stop."""
    cluster = split(workers // 2, workers - workers // 2)
    planning = Choice("tandem", {"simulate": simulate})
    return replace(cluster, policies=replace(cluster.policies, planning=planning))


def in_the_twin(workers: int, phase_s: float, seed: int) -> list[Run]:
    """One run for every split, and the planners."""
    rows = shifting((LONG_PROMPTS, LONG_ANSWERS, LONG_PROMPTS), phase_s, workers, seed)
    trials = [
        Trial(f"{count} + {workers - count}", split(count, workers - count), 1.0)
        for count in range(1, workers)
    ]
    trials.append(Trial(FORMULAS, planned(workers, simulate=False), 1.0))
    trials.append(Trial(SIMULATED, planned(workers, simulate=True), 1.0))
    records = run_trials(trials, rows, host_facts().cores, lambda _: None)
    return [Run(trial, record) for trial, record in zip(trials, records, strict=True)]


def flips(run: Run) -> int:
    """Changes of role that were begun."""
    return sum(
        decision.text.count(" becomes ")
        for decision in run.record.decisions
        if decision.kind == "planning"
    )


def show(runs: Sequence[Run], title: str) -> None:
    """The table, and whether the planner is as good as the best split that never changes."""
    console = Console(width=110)
    table = Table("split or planner", title=title, title_justify="left")
    for column in ("goodput/s", "SLO kept", "mean TTFT", "mean TPOT", "flips"):
        table.add_column(column, justify="right")
    for run in runs:
        latencies = run.summary.latencies
        table.add_row(
            run.trial.label,
            f"{run.summary.goodput_rps:.2f}",
            f"{run.summary.attainment:.1%}",
            "-" if latencies.ttft is None else f"{latencies.ttft.mean_ns / 1e9:.2f} s",
            "-" if latencies.tpot is None else f"{latencies.tpot.mean_ns / 1e6:.1f} ms",
            str(flips(run)),
        )
    console.print(table)
    for run in runs:
        for decision in run.record.decisions:
            if decision.kind == "planning" and " becomes " in decision.text:
                console.print(
                    f"{run.trial.label}: {decision.now_ns / 1e9:.0f} s: {decision.text}",
                    soft_wrap=True,
                    highlight=False,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phase", type=float, default=300.0, help="seconds of each phase")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    wishes = parser.parse_args()
    runs = in_the_twin(wishes.workers, wishes.phase, wishes.seed)
    show(runs, f"{wishes.workers} workers, three phases of {wishes.phase:g} s")


if __name__ == "__main__":
    main()
