"""Blocks go from a device to its tiers and back, whatever comes between."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Event

import pytest
import torch

from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat, BlockName
from tandem.kernels.transfer import choose_transfer
from tandem.kv.layout import KvLayout
from tandem.kv.store import KvStore
from tandem.kv.tiers.contract import (
    BlockStore,
    Found,
    Kept,
    Row,
    TierCalls,
    TierEngineConfig,
    TierEvent,
)
from tandem.kv.tiers.device import CpuBlocks
from tandem.kv.tiers.disk import DiskConfig, DiskStore
from tandem.kv.tiers.engine import TierEngine
from tandem.kv.tiers.host import HostStore
from tandem.messages.node import BlocksFetched, BlocksKept, BlocksStaged
from tests.kv.ending import closing
from tests.kv.tier_blocks import PATIENCE_S, ROOT, content, digests, name, names

LAYOUT = KvLayout(layers=2, kv_heads=2, block_size=4, head_dim=6, dtype="float32")
SIZE = LAYOUT.block_bytes
FORMAT = BlockFormat(ROOT, SIZE)
BLOCKS = 40
TRANSFER = choose_transfer()
# Of two or three blocks, so that everything here takes several steps.
CONFIG = TierEngineConfig(
    staging_bytes=12 * SIZE,
    transit_bytes=4 * SIZE,
    chunk_bytes=2 * SIZE,
    fetch_chunk_bytes=3 * SIZE,
)


class FaultyStore:
    """A store that does as another one, or waits at its `gate`, fails with `problem`, or finds the
    blocks that are `corrupt`."""

    def __init__(self, store: BlockStore) -> None:
        self.store = store
        self.gate = Event()
        self.gate.set()
        self.problem = ""
        self.corrupt: set[bytes] = set()
        self.reached = Event()
        self.closed = False
        self.calls: list[str] = []

    def hold_calls(self) -> None:
        """The next call waits for the gate; `reached` is set when it comes."""
        self.gate.clear()
        self.reached.clear()

    def put_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Kept:
        self._wait("put")
        return Kept((), self.problem) if self.problem else self.store.put_blocks(names, rows)

    def get_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Found:
        self._wait("get")
        if self.problem:
            return Found(0, problem=self.problem)
        for index, one in enumerate(names):
            if one.digest in self.corrupt:
                found = self.store.get_blocks(names[:index], rows[:index])
                return found if found.blocks < index else Found(index, corrupt=(one.digest,))
        return self.store.get_blocks(names, rows)

    def forget_blocks(self, digests: Sequence[bytes]) -> None:
        self._wait("forget")
        self.store.forget_blocks(digests)

    def stored_blocks(self) -> tuple[BlockName, ...]:
        return self.store.stored_blocks()

    def close_store(self) -> None:
        self.closed = True
        self.store.close_store()

    def _wait(self, call: str) -> None:
        self.calls.append(call)
        self.reached.set()
        assert self.gate.wait(PATIENCE_S)


class Bounced(CpuBlocks):
    """A device that stores cannot write to, like a GPU."""

    @property
    def rows(self) -> None:
        return None


class Worker:
    """A device with a few blocks, its tiers, and the events of their engine."""

    def __init__(self, folder, device=CpuBlocks, config=CONFIG) -> None:
        self.kv = KvStore(LAYOUT, BLOCKS, torch.device("cpu"))
        self.blocks = self.kv.pool_BL2KSD.view(torch.uint8).view(BLOCKS, -1).numpy()
        self.blocks[:] = 0xEE
        disk = DiskConfig(folder / "worker-0.kv", 30)
        self.stores = {
            Tier.HOST: FaultyStore(HostStore(FORMAT, 30, TRANSFER)),
            Tier.DISK: FaultyStore(DiskStore(disk, FORMAT, TRANSFER)),
            Tier.REMOTE: FaultyStore(HostStore(FORMAT, 30, TRANSFER)),
        }
        self.events: SimpleQueue[TierEvent] = SimpleQueue()
        self.broken = Event()
        calls = TierCalls(self.events.put, self.broken.set, time.monotonic_ns)
        self.device = device(self.kv, TRANSFER)
        self.engine = TierEngine(self.device, self.stores, config, calls)

    def close(self) -> None:
        for store in self.stores.values():
            store.gate.set()
        self.engine.stop_tiers()
        assert not self.broken.is_set()

    def write(self, blocks: Sequence[int], named: Sequence[BlockName]) -> None:
        for block, one in zip(blocks, named, strict=True):
            self.blocks[block] = content(one, SIZE)

    def holds(self, blocks: Sequence[int], named: Sequence[BlockName]) -> bool:
        pairs = zip(blocks, named, strict=True)
        return all((self.blocks[block] == content(one, SIZE)).all() for block, one in pairs)

    def next(self) -> TierEvent:
        return self.events.get(timeout=PATIENCE_S)

    def keep(self, tier: Tier, named: Sequence[BlockName], copy_id: int = 1) -> BlocksKept:
        """From the last blocks of the device, through the staging memory."""
        places = range(BLOCKS - len(named), BLOCKS)
        self.write(places, named)
        self.engine.stage_blocks(copy_id, tuple(places))
        assert self.next() == BlocksStaged(copy_id, staged=True)
        self.engine.keep_staged(copy_id, tier, tuple(range(len(named))), tuple(named))
        kept = self.next()
        self.engine.drop_staged(copy_id)
        assert isinstance(kept, BlocksKept)
        return kept

    def fetch(self, tiers: Sequence[Tier], named: Sequence[BlockName]) -> BlocksFetched:
        """Into the first blocks of the device."""
        self.engine.fetch_blocks(7, tuple(tiers), tuple(named), tuple(range(len(named))))
        fetched = self.next()
        assert isinstance(fetched, BlocksFetched)
        assert self.holds(range(fetched.blocks), named[: fetched.blocks])
        return fetched


@pytest.fixture(params=[CpuBlocks, Bounced], ids=["direct", "bounced"])
def worker(request, tmp_path):
    with closing(Worker(tmp_path, request.param)) as worker:
        yield worker


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK, Tier.REMOTE])
def test_blocks_go_out_and_come_back(worker, tier):
    named = names(11)
    assert worker.keep(tier, named) == BlocksKept(1, tier, digests(named))
    fetched = worker.fetch([tier] * 11, named)
    assert fetched.blocks == 11
    assert fetched.moved_bytes == 11 * SIZE
    assert 0 < fetched.seconds < PATIENCE_S
    assert (fetched.corrupt, fetched.missing, fetched.problem) == ((), (), "")


def test_only_the_rows_that_are_wanted_are_kept(worker):
    named = names(5)
    worker.write(range(5), named)
    worker.engine.stage_blocks(1, (0, 1, 2, 3, 4))
    assert worker.next() == BlocksStaged(1, staged=True)
    # The device goes on with other things.
    worker.blocks[:] = 0
    wanted = (named[4], named[1])
    worker.engine.keep_staged(1, Tier.HOST, (4, 1), wanted)
    worker.engine.keep_staged(1, Tier.REMOTE, (4, 1), wanted)
    worker.engine.drop_staged(1)
    kept = {worker.next(), worker.next()}
    # Dropped early, it may have been kept or not; the answers come all the same.
    assert {event.tier for event in kept} == {Tier.HOST, Tier.REMOTE}
    for event in kept:
        assert set(event.kept) <= set(digests(wanted))
        if len(event.kept) == 2:
            assert worker.fetch([event.tier] * 2, wanted).blocks == 2


def test_staging_memory_is_bounded_and_comes_back(worker):
    engine = worker.engine
    engine.stage_blocks(1, range(8))
    engine.stage_blocks(2, range(8, 16))
    engine.stage_blocks(3, range(4))
    assert {worker.next() for _ in range(3)} == {
        BlocksStaged(1, staged=True),
        BlocksStaged(2, staged=False),
        BlocksStaged(3, staged=True),
    }
    engine.drop_staged(1)
    engine.stage_blocks(4, range(8))
    assert worker.next() == BlocksStaged(4, staged=True)
    engine.drop_staged(4)
    engine.drop_staged(4)
    engine.drop_staged(3)
    engine.stage_blocks(5, range(12))
    assert worker.next() == BlocksStaged(5, staged=True)


def test_what_is_being_kept_is_not_used_again_before(worker):
    host, named = worker.stores[Tier.HOST], names(6)
    worker.write(range(6), named)
    worker.engine.stage_blocks(1, range(6))
    worker.next()
    host.hold_calls()
    worker.engine.keep_staged(1, Tier.HOST, range(6), named)
    assert host.reached.wait(PATIENCE_S)
    worker.engine.drop_staged(1)
    worker.write(range(10), names(10, chain=5))
    worker.engine.stage_blocks(2, range(10))
    assert worker.next() == BlocksStaged(2, staged=False)
    host.gate.set()
    # The piece under way was kept, and nothing else of it.
    assert worker.next() == BlocksKept(1, Tier.HOST, digests(named[:2]))
    assert worker.fetch([Tier.HOST] * 2, named[:2]).blocks == 2
    worker.engine.stage_blocks(3, range(10))
    assert worker.next() == BlocksStaged(3, staged=True)


def test_a_fetch_from_several_tiers_counts_the_leading_whole_blocks(worker):
    named = names(9)
    tiers = [Tier.HOST, Tier.DISK, Tier.HOST, Tier.REMOTE, Tier.DISK] + [Tier.HOST] * 4
    for tier in Tier.HOST, Tier.DISK, Tier.REMOTE:
        mine = [one for one, where in zip(named, tiers, strict=True) if where is tier]
        assert worker.keep(tier, mine).kept == digests(mine)
    assert worker.fetch(tiers, named).blocks == 9
    worker.stores[Tier.DISK].corrupt = {named[4].digest}
    worker.blocks[:] = 0
    fetched = worker.fetch(tiers, named)
    assert (fetched.blocks, fetched.corrupt) == (4, (named[4].digest,))
    worker.engine.forget_in_tier(Tier.REMOTE, (named[3].digest,))
    fetched = worker.fetch(tiers, named)
    assert fetched.blocks in (3, 4)  # a fetch goes before what was to be forgotten
    while fetched.blocks == 4:
        fetched = worker.fetch(tiers, named)
    assert (fetched.blocks, fetched.missing) == (3, (named[3].digest,))
    worker.stores[Tier.HOST].problem = "out of order"
    fetched = worker.fetch(tiers, named)
    assert (fetched.blocks, fetched.problem) == (0, "out of order")


def test_of_two_tiers_that_miss_a_block_the_first_block_counts(worker):
    host, disk = worker.stores[Tier.HOST], worker.stores[Tier.DISK]
    for store in host, disk:
        store.hold_calls()
    worker.engine.fetch_blocks(7, (Tier.HOST, Tier.DISK), names(2), (0, 1))
    worker.engine.fetch_blocks(8, (Tier.HOST,), names(1), (2,))
    assert host.reached.wait(PATIENCE_S)
    assert disk.reached.wait(PATIENCE_S)
    host.gate.set()
    assert worker.next().fetch_id == 8
    disk.gate.set()
    fetched = worker.next()
    assert (fetched.fetch_id, fetched.blocks) == (7, 0)
    assert fetched.missing == digests(names(2))


def test_what_was_announced_of_a_block_is_invalidated_before_it_is_written(tmp_path):
    invalidated: list[tuple[int, ...]] = []

    class Watched(CpuBlocks):
        def invalidate_blocks(self, blocks: Sequence[int]) -> None:
            assert (self.rows[list(blocks)] == 0xEE).all()
            invalidated.append(tuple(blocks))

    with closing(Worker(tmp_path, Watched)) as worker:
        worker.keep(Tier.HOST, names(3))
        worker.fetch([Tier.HOST] * 3, names(3))
    assert invalidated == [(0, 1, 2)]


@pytest.mark.parametrize(
    ("source", "target"), [(Tier.HOST, Tier.DISK), (Tier.DISK, Tier.HOST), (Tier.REMOTE, Tier.HOST)]
)
def test_copies_between_tiers(worker, source, target):
    named = names(9)
    worker.keep(source, named)
    worker.engine.copy_between_tiers(3, source, target, tuple(named))
    assert worker.next() == BlocksKept(3, target, digests(named))
    worker.engine.forget_in_tier(source, digests(named))
    assert worker.fetch([target] * 9, named).blocks == 9


def test_a_copy_goes_on_behind_what_is_not_there(worker):
    named = names(10)
    here = [one for index, one in enumerate(named) if index not in (0, 3, 4, 9)]
    worker.keep(Tier.HOST, here)
    worker.stores[Tier.HOST].corrupt = {named[7].digest}
    worker.engine.copy_between_tiers(3, Tier.HOST, Tier.DISK, tuple(named))
    whole = [one for one in here if one != named[7]]
    assert worker.next() == BlocksKept(3, Tier.DISK, digests(whole))
    assert worker.fetch([Tier.DISK] * len(whole), whole).blocks == len(whole)


@pytest.mark.parametrize("broken", [Tier.HOST, Tier.DISK])
def test_a_copy_reports_what_went_wrong(worker, broken):
    worker.keep(Tier.HOST, names(5))
    worker.stores[broken].problem = "out of order"
    worker.engine.copy_between_tiers(3, Tier.HOST, Tier.DISK, tuple(names(5)))
    assert worker.next() == BlocksKept(3, Tier.DISK, (), "out of order")


def test_more_copies_than_there_is_memory_for(worker):
    named = names(30)
    for begin in range(0, 30, 10):
        worker.keep(Tier.HOST, named[begin : begin + 10])
    for copy_id in range(15):
        two = named[2 * copy_id : 2 * copy_id + 2]
        worker.engine.copy_between_tiers(copy_id, Tier.HOST, Tier.DISK, tuple(two))
    kept = {event.copy_id: event.kept for event in (worker.next() for _ in range(15))}
    assert kept == {n: digests(named[2 * n : 2 * n + 2]) for n in range(15)}


def test_what_is_asked_of_a_tier_that_does_not_exist(tmp_path):
    with closing(Worker(tmp_path)) as full:
        calls = TierCalls(full.events.put, full.broken.set, time.monotonic_ns)
        with closing(TierEngine(full.device, {}, CONFIG, calls)) as engine:
            engine.stage_blocks(1, (0,))
            assert full.next() == BlocksStaged(1, staged=True)
            engine.keep_staged(1, Tier.HOST, (0,), names(1))
            assert full.next() == BlocksKept(1, Tier.HOST, (), "no such tier")
            engine.copy_between_tiers(2, Tier.HOST, Tier.DISK, names(1))
            assert full.next() == BlocksKept(2, Tier.DISK, (), "no such tier")
            engine.forget_in_tier(Tier.HOST, digests(names(1)))
            engine.fetch_blocks(3, (Tier.HOST,), names(1), (0,))
            fetched = full.next()
            assert (fetched.blocks, fetched.problem) == (0, "there is no host tier")
        full.engine.keep_staged(9, Tier.HOST, (0,), names(1))
        assert full.next() == BlocksKept(9, Tier.HOST, (), "nothing is staged")
        full.engine.fetch_blocks(4, (), (), ())
        assert full.next() == BlocksFetched(4, 0)


def test_a_fetch_goes_before_what_nobody_waits_for(worker):
    host, named = worker.stores[Tier.HOST], names(12)
    worker.keep(Tier.HOST, named[:3])
    worker.write(range(12, 24), named)
    worker.engine.stage_blocks(5, range(12, 24))
    worker.next()
    host.hold_calls()
    worker.engine.keep_staged(5, Tier.HOST, range(12), named)
    assert host.reached.wait(PATIENCE_S)
    worker.engine.fetch_blocks(7, [Tier.HOST] * 3, named[:3], range(3))
    worker.engine.forget_in_tier(Tier.HOST, digests(named))
    host.gate.set()
    fetched, kept = worker.next(), worker.next()
    assert (fetched.fetch_id, fetched.blocks) == (7, 3)
    assert kept == BlocksKept(5, Tier.HOST, digests(named))
    assert worker.fetch([Tier.HOST], named[:1]).blocks in (0, 1)
    assert host.calls[1:5] == ["put", "put", "get", "put"]


def test_a_fetch_that_is_stopped_ends_soon(worker):
    host, named = worker.stores[Tier.HOST], names(9)
    worker.keep(Tier.HOST, named)
    host.hold_calls()
    worker.engine.fetch_blocks(7, [Tier.HOST] * 9, named, range(9))
    assert host.reached.wait(PATIENCE_S)
    worker.engine.end_fetch(7)
    host.gate.set()
    fetched = worker.next()
    assert (fetched.blocks, fetched.problem) == (0, "stopped")
    assert (worker.blocks[3:9] == 0xEE).all()
    worker.engine.end_fetch(7)
    assert worker.fetch([Tier.HOST] * 9, named).blocks == 9


def test_one_slow_tier_holds_up_no_other(worker):
    worker.keep(Tier.HOST, names(3))
    worker.stores[Tier.REMOTE].gate.clear()
    worker.engine.fetch_blocks(1, [Tier.REMOTE], names(1), (20,))
    assert worker.fetch([Tier.HOST] * 3, names(3)).blocks == 3
    assert worker.keep(Tier.DISK, names(3)).kept == digests(names(3))
    worker.stores[Tier.REMOTE].gate.set()
    assert worker.next().fetch_id == 1


def test_after_close_nobody_is_called(tmp_path):
    worker = Worker(tmp_path)
    worker.keep(Tier.HOST, names(6))
    for store in worker.stores.values():
        store.gate.clear()
    worker.engine.stage_blocks(2, range(4))
    assert worker.next() == BlocksStaged(2, staged=True)
    worker.engine.keep_staged(2, Tier.DISK, range(4), names(4))
    worker.engine.copy_between_tiers(3, Tier.HOST, Tier.REMOTE, names(6))
    worker.engine.fetch_blocks(4, [Tier.HOST] * 6, names(6), range(6))
    worker.engine.forget_in_tier(Tier.HOST, digests(names(2)))
    for store in worker.stores.values():
        store.gate.set()
    worker.close()
    late = []
    while not worker.events.empty():
        late.append(worker.events.get())
    answered = Counter(type(event).__name__ for event in late)
    assert answered == {"BlocksKept": 2, "BlocksFetched": 1}
    assert all(store.closed for store in worker.stores.values())
    worker.engine.stage_blocks(9, range(4))
    worker.engine.fetch_blocks(9, [Tier.HOST], names(1), (0,))
    with pytest.raises(Empty):
        worker.events.get(timeout=0.05)


def test_a_store_that_hangs_does_not_keep_a_worker_from_leaving(tmp_path):
    config = TierEngineConfig(staging_bytes=SIZE, close_s=0.1)
    worker = Worker(tmp_path, config=config)
    remote = worker.stores[Tier.REMOTE]
    remote.gate.clear()
    remote.reached.clear()
    worker.engine.fetch_blocks(1, [Tier.REMOTE], names(1), (0,))
    assert remote.reached.wait(PATIENCE_S)
    begun_s = time.monotonic()
    worker.engine.stop_tiers()
    assert time.monotonic() - begun_s < 5
    remote.gate.set()
    with pytest.raises(Empty):
        worker.events.get(timeout=0.1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_thread_that_breaks_is_reported(tmp_path):
    worker = Worker(tmp_path, config=TierEngineConfig(staging_bytes=SIZE, close_s=0.1))

    class Broken(Exception):
        pass

    def put(names: Sequence[BlockName], rows: Sequence[Row]) -> Kept:
        raise Broken

    worker.stores[Tier.HOST].put_blocks = put
    worker.engine.stage_blocks(1, (0,))
    worker.next()
    worker.engine.keep_staged(1, Tier.HOST, (0,), names(1))
    assert worker.broken.wait(PATIENCE_S)
    worker.engine.stop_tiers()


class Life:
    """Random orders, as a machine gives them that knows the rules: it keeps rows only whose blocks
    were not overwritten meanwhile, and nobody writes where a fetch may still write."""

    def __init__(self, worker: Worker, seed: int) -> None:
        self.worker = worker
        self.chosen = random.Random(seed)
        self.next_id = 0
        self.held: dict[int, BlockName] = {}
        self.versions = [0] * BLOCKS
        self.stages: dict[int, tuple[tuple[int, ...], list[int], list[BlockName]]] = {}
        self.keeps: dict[tuple[int, Tier], int] = {}
        self.copies: dict[int, Tier] = {}
        self.fetches: dict[int, tuple[tuple[int, ...], list[BlockName]]] = {}
        self.known: dict[Tier, set[BlockName]] = {tier: set() for tier in worker.stores}
        self.by_digest = {name(number).digest: name(number) for number in range(25)}

    def act(self) -> None:
        ways: list[Callable[[], None]] = [
            self.compute, self.compute, self.stage, self.copy, self.fetch, self.forget,
            self.break_store,
        ]  # fmt: skip
        self.chosen.choice(ways)()

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def quiet_blocks(self) -> list[int]:
        busy = {block for blocks, _ in self.fetches.values() for block in blocks}
        return [block for block in range(BLOCKS) if block not in busy]

    def compute(self) -> None:
        """The engine writes other blocks, also while they are being staged."""
        quiet = self.quiet_blocks()
        for block in self.chosen.sample(quiet, min(3, len(quiet))):
            named = name(self.chosen.randrange(25))
            self.versions[block] += 1
            self.held[block] = named
            self.worker.write([block], [named])

    def stage(self) -> None:
        blocks = [block for block in self.quiet_blocks() if block in self.held]
        some = tuple(self.chosen.sample(blocks, min(len(blocks), self.chosen.randrange(1, 6))))
        copy_id = self.new_id()
        versions = [self.versions[block] for block in some]
        self.stages[copy_id] = some, versions, [self.held[block] for block in some]
        self.worker.engine.stage_blocks(copy_id, some)

    def copy(self) -> None:
        source, target = self.chosen.sample(list(Tier)[1:], 2)
        copy_id = self.new_id()
        self.copies[copy_id] = target
        named = [name(self.chosen.randrange(25)) for _ in range(4)]
        self.worker.engine.copy_between_tiers(copy_id, source, target, tuple(named))

    def fetch(self) -> None:
        quiet = self.quiet_blocks()
        count = min(len(quiet), self.chosen.randrange(8))
        blocks = tuple(self.chosen.sample(quiet, count))
        tiers = [self.chosen.choice(list(Tier)[1:]) for _ in blocks]
        options = [sorted(self.known[t], key=lambda n: n.digest) or [name(0)] for t in tiers]
        named = [self.chosen.choice(some) for some in options]
        for block in blocks:
            self.held.pop(block, None)
            self.versions[block] += 1
        fetch_id = self.new_id()
        self.fetches[fetch_id] = blocks, named
        self.worker.engine.fetch_blocks(fetch_id, tiers, named, blocks)
        if self.chosen.random() < 0.1:
            self.worker.engine.end_fetch(fetch_id)

    def forget(self) -> None:
        tier = self.chosen.choice(list(self.known))
        some = [n for n in self.known[tier] if self.chosen.random() < 0.3]
        self.known[tier] -= set(some)
        self.worker.engine.forget_in_tier(tier, digests(some))

    def break_store(self) -> None:
        store = self.worker.stores[self.chosen.choice(list(self.known))]
        store.problem = self.chosen.choice(["", "", "out of order"])
        store.corrupt = {name(self.chosen.randrange(25)).digest}

    def take_event(self, event: TierEvent) -> None:
        """Raises `KeyError` for an answer to nothing, or a second one."""
        engine = self.worker.engine
        if isinstance(event, BlocksStaged):
            blocks, versions, named = self.stages.pop(event.copy_id)
            pairs = enumerate(zip(blocks, versions, strict=True))
            good = tuple(i for i, (b, g) in pairs if self.versions[b] == g)
            if event.staged and good:
                tiers = self.chosen.sample(list(self.known), 2)
                self.keeps.update({(event.copy_id, tier): len(tiers) for tier in tiers})
                for tier in tiers:
                    engine.keep_staged(event.copy_id, tier, good, tuple(named[i] for i in good))
            elif event.staged:
                engine.drop_staged(event.copy_id)
        elif isinstance(event, BlocksKept):
            if event.copy_id in self.copies:
                assert self.copies.pop(event.copy_id) is event.tier
            else:
                del self.keeps[event.copy_id, event.tier]
                if not any(copy_id == event.copy_id for copy_id, _ in self.keeps):
                    engine.drop_staged(event.copy_id)
            self.known[event.tier] |= {self.by_digest[digest] for digest in event.kept}
        else:
            blocks, named = self.fetches.pop(event.fetch_id)
            # The heart of it: whatever is said to be whole is exactly what its name says.
            assert self.worker.holds(blocks[: event.blocks], named[: event.blocks])
            self.held.update(zip(blocks[: event.blocks], named, strict=False))

    @property
    def awaited(self) -> int:
        return sum(map(len, (self.stages, self.keeps, self.copies, self.fetches)))


@pytest.mark.parametrize("device", [CpuBlocks, Bounced], ids=["direct", "bounced"])
@pytest.mark.parametrize("seed", range(6))
def test_every_order_is_answered_once_and_no_wrong_byte_comes_back(tmp_path, device, seed):
    with closing(Worker(tmp_path, device)) as worker:
        life = Life(worker, seed)
        for _ in range(250):
            life.act()
            while not worker.events.empty() or life.awaited > 12:
                life.take_event(worker.next())
        while life.awaited:
            life.take_event(worker.next())
        assert worker.events.empty()
        assert len(worker.engine._staging._free) == 12


@pytest.mark.parametrize("seed", range(12))
def test_closed_at_any_time(tmp_path, seed):
    """Whatever was asked for is answered, or not at all once it is closed."""
    worker = Worker(tmp_path)
    life = Life(worker, seed)
    for _ in range(life.chosen.randrange(40)):
        life.act()
        while not worker.events.empty():
            life.take_event(worker.next())
    worker.close()
    while not worker.events.empty():
        event = worker.events.get()
        if not isinstance(event, BlocksStaged):
            life.take_event(event)
        else:
            del life.stages[event.copy_id]
    assert life.awaited == 0
    assert all(store.closed for store in worker.stores.values())
