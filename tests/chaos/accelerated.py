"""Faults by the hundred thousand in the twin, with slower tiers and a shared pool, every message
through the codec of the wire and a ledger of what lies in every block:
python -m tests.chaos.accelerated --faults 100000

Seeds run one after the other until so many faults have happened; each ends in the audit of
everything. What breaks a law is reported with its seed and the run goes on.
"""

import argparse
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.twin.chance_draws import World
from tests.twin.chance_run import play

SEEDS_A_CHUNK = 25
MOST_BROKEN = 20
FAULTS_A_RUN = 24
# By seed, in turn: one run in four has a planner and no slower tiers, which flips and starts.
WORLDS = (World(tiers=True, faults=FAULTS_A_RUN),) * 3 + (World(plans=True, faults=FAULTS_A_RUN),)
# What came of the faults.
OUTCOMES = ("finished", "rejected", "withdrawn", "gateway lost", "failed")
FOLLOWED = (
    "taken up again",
    "fenced",
    "turned away",
    "hand-overs",
    "hand-overs without KV",
    "migrations",
    "flips",
    "leaves",
    "moves stopped",
    "stale reads",
    "blocks fetched",
    "fetches corrupt",
    "fetches missing",
    "fetches broken",
    "pool gone",
    "reports lost",
)


@dataclass
class Tally:
    """Of some seeds: `faults` by kind, `seen` what came of them, `broken` laws by seed, and the
    processor's seconds."""

    seeds: int = 0
    cpu_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    broken: dict[int, str] = field(default_factory=dict)

    def add(self, other: "Tally") -> None:
        self.seeds += other.seeds
        self.cpu_s += other.cpu_s
        self.faults.update(other.faults)
        self.seen.update(other.seen)
        self.broken.update(other.broken)

    @property
    def requests(self) -> int:
        return sum(self.seen[ending] for ending in OUTCOMES)


def world_of(seed: int) -> World:
    return WORLDS[seed % len(WORLDS)]


def play_seeds(first_seed: int, seeds: int) -> Tally:
    """Each of these seeds to its end. A broken law is kept, not raised."""
    tally, began_s = Tally(seeds), _cpu_s()
    for seed in range(first_seed, first_seed + seeds):
        try:
            run = play(seed, world_of(seed))
        except (AssertionError, LookupError, ValueError, TypeError, AttributeError):
            tally.broken[seed] = traceback.format_exc()
            continue
        tally.faults.update(run.faults)
        tally.seen.update(run.seen)
    tally.cpu_s = _cpu_s() - began_s
    return tally


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def play_until(faults: int, first_seed: int = 0, processes: int = 1) -> Iterator[Tally]:
    """The tally so far, again and again, until so many faults have happened, or too much is
    broken."""
    total = Tally()
    with ProcessPoolExecutor(processes) as pool:
        while total.faults.total() < faults and len(total.broken) < MOST_BROKEN:
            starts = [
                first_seed + total.seeds + index * SEEDS_A_CHUNK for index in range(processes)
            ]
            for tally in pool.map(play_seeds, starts, [SEEDS_A_CHUNK] * processes):
                total.add(tally)
            yield total


def report(tally: Tally, took_s: float) -> str:
    lines = [
        f"{tally.faults.total():,} faults in {tally.seeds:,} seeds, {took_s:,.0f} s, "
        f"{tally.cpu_s:,.0f} s of a processor",
        "  " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(tally.faults.items())),
        f"{tally.requests:,} requests: "
        + ", ".join(f"{tally.seen[ending]:,} {ending}" for ending in OUTCOMES),
        "  " + ", ".join(f"{tally.seen[what]:,} {what}" for what in FOLLOWED),
        f"laws broken, leaks among them: {len(tally.broken)}",
    ]
    for seed, trace in sorted(tally.broken.items()):
        lines += [f"seed {seed}:", trace]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--faults", type=int, default=100_000)
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--processes", type=int, default=1)
    wanted = options.parse_args(arguments)
    began_s, tally = time.monotonic(), Tally()
    for tally in play_until(wanted.faults, wanted.first_seed, wanted.processes):
        if sys.stderr.isatty():
            print(f"\r{tally.faults.total():,} faults", end="", file=sys.stderr, flush=True)
    print(report(tally, time.monotonic() - began_s))
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
