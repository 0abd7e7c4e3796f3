"""A load that shifts from long prompts to long answers and back: the planner beside every static
split of the same workers, in the simulator; with --live on a cluster of this machine, the
simulator's figure beside each live one.

Usage: python bench/shifting_load.py [--phase 300] [--workers 4] [--seed 1]
       python bench/shifting_load.py --live [--phase 120] [--seed 1] [--only "3 + 1,planner"]
                                    [--folder F]

A live run takes about 25 minutes, six for each split and the planner. With --folder its cluster
files and records stay there.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from shifting_live import live_and_twin
from shifting_runs import Load, Phase, PlayedLoad, table_of
from tandem.commands.simulated_runs import Trial, run_trials
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.keys import Choice
from tandem.config.cluster.workers import PoolConfig
from tandem.config.environment import host_facts
from tandem.facts.fleet import Role
from tandem.facts.slo import Slo

SIMULATED = "tandem, simulate"
FORMULAS = "tandem, formulas"
# For workers of four H100 with Llama-3-70B each: a prompt of 8,000 tokens takes half a second, and
# 32 answers run at a time. Of four workers the first phase needs three to prefill, the second three
# to decode. Rates are of one worker.
LONG_PROMPTS = Phase(1.05, 8_000, 60)
LONG_ANSWERS = Phase(2.0, 300, 600)
SLO = Slo(ttft_s=3.0, tpot_s=0.02)


def shifting(workers: int, phase_s: float, seed: int) -> Load:
    phases = [
        replace(phase, rate_per_s=workers * phase.rate_per_s)
        for phase in (LONG_PROMPTS, LONG_ANSWERS, LONG_PROMPTS)
    ]
    return Load(phases, phase_s, SLO, seed)


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


def in_the_twin(workers: int, load: Load) -> list[PlayedLoad]:
    """One run for every split, and the planners."""
    trials = [
        Trial(f"{count} + {workers - count}", split(count, workers - count), 1.0)
        for count in range(1, workers)
    ]
    trials.append(Trial(FORMULAS, planned(workers, simulate=False), 1.0))
    trials.append(Trial(SIMULATED, planned(workers, simulate=True), 1.0))
    records = run_trials(trials, load.rows(), host_facts().cores, lambda _: None)
    return [
        PlayedLoad.simulated(trial.label, load, record)
        for trial, record in zip(trials, records, strict=True)
    ]


def show(runs: Sequence[PlayedLoad], title: str) -> None:
    """The table, and what the planners did."""
    console = Console(width=120)
    table = table_of(title, "split or planner")
    for run in runs:
        table.add_row(run.label, *run.cells())
    console.print(table)
    for run in runs:
        run.show_decisions(console)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--live", action="store_true", help="on a cluster of this machine")
    parser.add_argument("--phase", type=float, help="seconds of each phase (300; live 120)")
    parser.add_argument("--workers", type=int, default=4, help="of the simulator alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="some of the live runs, commas between")
    parser.add_argument("--folder", type=Path, help="keeps the files of a live run")
    wishes = parser.parse_args()
    if wishes.live:
        only = [label for label in wishes.only.split(",") if label]
        live_and_twin(wishes.phase or 120.0, wishes.seed, only, wishes.folder)
        return
    phase_s = wishes.phase or 300.0
    runs = in_the_twin(wishes.workers, shifting(wishes.workers, phase_s, wishes.seed))
    show(runs, f"{wishes.workers} workers, three phases of {phase_s:g} s")


if __name__ == "__main__":
    main()
