"""Performs simulated runs, several at a time in processes of their own; each run is the same
whichever process performs it."""

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from tandem.bench.traces.shape import speed
from tandem.commands.simulate_scenario import scenario_of, with_blocks, with_random_faults
from tandem.config.cluster.file import Cluster
from tandem.facts.trace import TraceRow
from tandem.report.record import RunRecord
from tandem.twin.simulation import simulate

_POLL_S = 0.2

# Hears how far each run is, 0 to 1.
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


@dataclass(frozen=True, slots=True)
class _Jobs:
    """What a process needs for its runs; in `done` it tells the progress of each."""

    trials: Sequence[Trial]
    rows: Sequence[TraceRow]
    done: MutableSequence[float]
    heard: Progress

    def perform(self, place: int) -> RunRecord:
        trial = self.trials[place]

        def hear(share: float) -> None:
            self.done[place] = share
            self.heard(self.done)

        rows = speed(self.rows, trial.speed)
        scenario = with_blocks(scenario_of(trial.cluster, trial.keeps_decisions), trial.kv_blocks)
        if trial.cluster.faults_per_hour:
            scenario = with_random_faults(scenario, trial.cluster, rows[-1].arrival_s)
        record = simulate(scenario, rows, hear)
        hear(1.0)
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
