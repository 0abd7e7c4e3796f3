"""The prefix index at the size of a large cluster: memory a block, events a second, lookup times.

Sessions of a few hundred blocks behind shared system prompts run on workers that keep the last ones
on the device and move what falls out to host memory, as pools do; some sessions change worker.
Usage: python bench/index.py [--blocks N] [--workers N]
"""

import argparse
import random
import statistics
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tandem.cluster.router.prefix_cache.index import PrefixIndex
from tandem.facts.blocks import BlockChanges
from tandem.facts.fleet import Tier

BLOCK_SIZE = 16
CHAIN_BLOCKS = 8_000
SYSTEM_BLOCKS = 64
REPORT_BLOCKS = 32
REPETITIONS = 300

Chain = list[bytes]
Report = tuple[str, Tier, BlockChanges]


@dataclass(frozen=True)
class Session:
    """Blocks of one conversation behind those of a shared system prompt."""

    system: int
    tail: Chain


@dataclass
class MadeUpPool:
    """Keeps system prompts for good and the last sessions while they fit."""

    worker: str
    tier: Tier
    capacity_blocks: int
    systems: set[int] = field(default_factory=set)
    sessions: dict[int, Session] = field(default_factory=dict)
    tail_blocks: int = 0
    reports: int = 0

    def report(self, removed: Chain, stored: Chain, parent: bytes) -> Iterator[Report]:
        parents = [parent, *stored]
        for start in range(0, max(len(removed), len(stored)), REPORT_BLOCKS):
            part = slice(start, start + REPORT_BLOCKS)
            new = tuple(stored[part])
            changes = BlockChanges(
                self.reports, tuple(removed[part]), new, tuple(parents[part][: len(new)])
            )
            self.reports += 1
            yield self.worker, self.tier, changes


class MadeUpFleet:
    """Says what its pools store and lose."""

    def __init__(self, workers: int, blocks: int) -> None:
        self.chance = random.Random(0)
        self.systems = [self.blocks(SYSTEM_BLOCKS) for _ in range(20)]
        per_worker = blocks // workers
        self.pools = [
            {
                Tier.DEVICE: MadeUpPool(f"worker-{k:04}", Tier.DEVICE, per_worker * 2 // 3),
                Tier.HOST: MadeUpPool(f"worker-{k:04}", Tier.HOST, per_worker // 3),
                Tier.DISK: MadeUpPool(f"worker-{k:04}", Tier.DISK, 0),
            }
            for k in range(workers)
        ]
        self.recent: deque[Session] = deque(maxlen=2_000)

    def blocks(self, count: int) -> Chain:
        return [self.chance.randbytes(16) for _ in range(count)]

    def turn(self) -> Iterator[Report]:
        """One request: its blocks are stored, and the oldest sessions make room."""
        pools = self.chance.choice(self.pools)
        if self.recent and self.chance.random() < 0.2:
            # Another worker served this session before: its blocks are now at two.
            session = self.chance.choice(self.recent)
        else:
            tail = self.blocks(self.chance.randrange(50, 500))
            session = Session(self.chance.randrange(len(self.systems)), tail)
            self.recent.append(session)
        for oldest in (yield from self.store(pools[Tier.DEVICE], session)):
            yield from self.store(pools[Tier.HOST], oldest)

    def store(self, pool: MadeUpPool, session: Session) -> Generator[Report, None, list[Session]]:
        if id(session) in pool.sessions:
            return []
        pool.sessions[id(session)] = session
        pool.tail_blocks += len(session.tail)
        gone: list[Session] = []
        while pool.tail_blocks > pool.capacity_blocks and len(pool.sessions) > 1:
            gone.append(pool.sessions.pop(next(iter(pool.sessions))))
            pool.tail_blocks -= len(gone[-1].tail)
        system = self.systems[session.system]
        if session.system not in pool.systems:
            pool.systems.add(session.system)
            yield from pool.report([], system, b"root")
        removed = [digest for oldest in gone for digest in reversed(oldest.tail)]
        yield from pool.report(removed, session.tail, system[-1])
        return gone


def fill(index: PrefixIndex, fleet: MadeUpFleet, blocks: int) -> tuple[float, float]:
    """Until that many blocks are resident: (events a second in growth, in the steady state)."""
    events, seconds = 0, 0.0
    while index.resident_blocks < blocks:
        count, spent = apply_turns(index, fleet, 1_000)
        events, seconds = events + count, seconds + spent
    count, spent = apply_turns(index, fleet, 5_000)
    return events / seconds, count / spent


def apply_turns(index: PrefixIndex, fleet: MadeUpFleet, turns: int) -> tuple[int, float]:
    batch = [report for _ in range(turns) for report in fleet.turn()]
    begin = time.perf_counter()
    for worker, tier, changes in batch:
        assert index.apply(worker, tier, changes)
    seconds = time.perf_counter() - begin
    return sum(len(changes.removed) + len(changes.stored) for _, _, changes in batch), seconds


def lookup_ms(index: PrefixIndex, chains: list[Chain]) -> tuple[float, float]:
    times = []
    for repetition in range(REPETITIONS):
        # Fresh bytes, as a request brings them: no hash of them is known yet.
        chain = [bytes(bytearray(digest)) for digest in chains[repetition % len(chains)]]
        begin = time.perf_counter()
        index.match(chain, 0)
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times), statistics.quantiles(times, n=100)[-1]


def hold(index: PrefixIndex, pool: MadeUpPool, chain: Chain) -> None:
    """The worker's disk comes to hold the chain, reported like anything else."""
    for worker, tier, changes in pool.report([], chain, b"root"):
        assert index.apply(worker, tier, changes)


def lose(index: PrefixIndex, pool: MadeUpPool, blocks: Chain) -> None:
    for worker, tier, changes in pool.report(blocks, [], b"root"):
        assert index.apply(worker, tier, changes)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measure_lookups(index: PrefixIndex, fleet: MadeUpFleet) -> None:
    def line(name: str, chains: list[Chain]) -> None:
        p50, p99 = lookup_ms(index, chains)
        print(f"lookup, {name:<52}{p50:8.3f} ms p50{p99:8.3f} ms p99")

    disks = [pools[Tier.DISK] for pools in fleet.pools]
    line("held nowhere", [fleet.blocks(CHAIN_BLOCKS) for _ in range(10)])
    few = [fleet.systems[0] + fleet.blocks(CHAIN_BLOCKS - SYSTEM_BLOCKS) for _ in range(100)]
    for place, chain in enumerate(few):
        for copy in range(4):
            held = chain[: CHAIN_BLOCKS - 1_000 * copy]
            hold(index, disks[(4 * place + copy) % len(disks)], held)
    line("start at all workers, most of it at four", few)
    everywhere = fleet.blocks(CHAIN_BLOCKS)
    for disk in disks:
        hold(index, disk, everywhere)
    line("all of it at all workers", [everywhere])
    for place, disk in enumerate(disks):
        lose(index, disk, everywhere[CHAIN_BLOCKS * (place + 1) // len(disks) :][::-1])
    line("at all workers, each ends elsewhere", [everywhere])
    holes = fleet.blocks(CHAIN_BLOCKS)
    for disk in disks:
        hold(index, disk, holes)
        lose(index, disk, fleet.chance.sample(holes[CHAIN_BLOCKS // 2 :], 8))
    line("at all workers, each lost 8 blocks of the second half", [holes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=1_000)
    options = parser.parse_args()
    # A fifth of the turns makes a second copy, so pools need room for more than distinct blocks.
    fleet = MadeUpFleet(options.workers, options.blocks * 7 // 5)
    index = PrefixIndex(BLOCK_SIZE)
    before = resident_bytes()
    growing, steady = fill(index, fleet, options.blocks)
    held_bytes = resident_bytes() - before
    blocks = index.resident_blocks
    print(f"{blocks:,} blocks at {options.workers:,} workers")
    print(f"events: {growing:,.0f} a second growing, {steady:,.0f} later")
    print(f"memory: {held_bytes / blocks:.0f} bytes a block, the made-up fleet's lists included")
    begin = time.perf_counter()
    index.forget_worker("worker-0000")
    print(f"a worker lost: {(time.perf_counter() - begin) * 1e3:.1f} ms")
    fleet.pools.pop(0)
    measure_lookups(index, fleet)


if __name__ == "__main__":
    main()
