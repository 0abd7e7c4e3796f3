"""The slower tiers of a simulated worker: stores of bookkeeping behind lanes that are as late as
chance wants, and that lose, spoil and refuse what they are given.

What is kept must be what its name says: a wrong byte is an assertion here, not a wrong answer.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tandem.facts.blocks import CacheRoot, extend_chain, salt_of
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.messages.node import (
    BlocksFetched,
    BlocksKept,
    BlocksStaged,
    CopyBlocks,
    DropStaged,
    EndFetch,
    FetchBlocks,
    ForgetBlocks,
    KeepStaged,
    StageBlocks,
)
from tests.cluster.ledger_engine import NONSENSE, LedgerEngine

Keys = list[bytes]
ROOT = CacheRoot("model", "revision", b"layout")
ROOTS = [ROOT.hash(salt_of("", salt)) for salt in ("", "tenant")]


def digests_of(keys: Keys) -> list[bytes]:
    """The names that a block with this content may bear; none when it is no block's content."""
    tokens, found = list(keys[-1]), []
    if keys != [bytes(tokens[: len(tokens) - len(keys) + 1 + at]) for at in range(len(keys))]:
        return []
    for root in ROOTS:
        chain: list[bytes] = []
        extend_chain(chain, root, tokens, len(keys))
        found.append(chain[-1])
    return found


@dataclass
class Store:
    """`blocks` by digest; the content of a corrupt one is None. `room` blocks fit in (0: any)."""

    room: int = 0
    blocks: dict[bytes, Keys | None] = field(default_factory=dict)

    def put(self, name: BlockName, keys: Keys) -> None:
        assert name.digest in digests_of(keys), "kept under a name that it does not have"
        self.blocks[name.digest] = keys
        assert not self.room or len(self.blocks) <= self.room, "more than there is room for"


class Lanes:
    """One worker's. `stores` are its own and the pool's; `events` is what it is to hear."""

    def __init__(self, stores: dict[Tier, Store], engine: LedgerEngine, chance: Random) -> None:
        self.stores = stores
        self.engine = engine
        self.chance = chance
        self.seen: Counter[str] = Counter()
        self.lanes: dict[Tier, deque[Callable[[], object]]] = {
            tier: deque() for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK, Tier.REMOTE)
        }
        self.staged: dict[int, list[Keys]] = {}
        self.stopped: set[int] = set()
        self.fetching: dict[int, tuple[int, ...]] = {}
        self.reading: Counter[bytes] = Counter()
        self.events: list = []
        self.pool_there: Callable[[], bool] = lambda: True

    @property
    def busy(self) -> list[Tier]:
        return [tier for tier, lane in self.lanes.items() if lane]

    def step(self, tier: Tier) -> list:
        """The next thing in a lane is done. Gives what is to be heard of it."""
        self.lanes[tier].popleft()()
        events, self.events = self.events, []
        return events

    def perform(self, effect) -> None:
        match effect:
            case StageBlocks():
                self.lanes[Tier.DEVICE].append(lambda: self._stage(effect))
            case KeepStaged():
                assert effect.copy_id in self.staged
                self.lanes[effect.tier].append(lambda: self._keep(effect))
            case DropStaged(copy_id):
                del self.staged[copy_id]
            case ForgetBlocks(tier, digests):
                self.lanes[tier].append(lambda: self._forget(tier, digests))
            case CopyBlocks():
                self._expect_once(effect)
                self.lanes[effect.source].append(lambda: self._read_copy(effect))
            case FetchBlocks():
                assert effect.fetch_id not in self.fetching
                self.fetching[effect.fetch_id] = effect.target_blocks
                self._queue_run(effect, 0)
            case EndFetch(fetch_id):
                assert fetch_id in self.fetching
                self.stopped.add(fetch_id)
                self.seen["fetches stopped"] += 1
            case _:
                raise AssertionError(effect)

    def _stage(self, effect: StageBlocks) -> None:
        """Blocks are read as late as may be: perhaps they hold something else by now."""
        staged = self.chance.randrange(12) > 0
        if staged:
            self.staged[effect.copy_id] = [list(self.engine.kv[block]) for block in effect.blocks]
        self.seen["staged" if staged else "no room to stage"] += 1
        self.events.append(BlocksStaged(effect.copy_id, staged))

    def _keep(self, effect: KeepStaged) -> None:
        rows = self.staged[effect.copy_id]
        named = [(name, rows[row]) for row, name in zip(effect.rows, effect.names, strict=True)]
        self._write(effect.copy_id, effect.tier, named)

    def _write(self, copy_id: int, tier: Tier, named: list[tuple[BlockName, Keys]]) -> None:
        problem = "broken" if self.chance.randrange(8) == 0 else ""
        if tier is Tier.REMOTE and not self.pool_there():
            problem = "nobody is there"
        count = self.chance.randrange(len(named) + 1) if problem else len(named)
        for name, keys in named[:count] if problem != "nobody is there" else []:
            self.stores[tier].put(name, keys)
            if self.chance.randrange(10) == 0:
                self.stores[tier].blocks[name.digest] = None
        count = 0 if problem == "nobody is there" else count
        kept = tuple(name.digest for name, _ in named[:count])
        self.seen[f"kept on {tier}"] += len(kept)
        self.events.append(BlocksKept(copy_id, tier, kept, problem))

    def _forget(self, tier: Tier, digests: tuple[bytes, ...]) -> None:
        for digest in digests:
            self.stores[tier].blocks.pop(digest, None)

    def _expect_once(self, effect: CopyBlocks) -> None:
        for name in effect.names:
            self.reading[name.digest] += 1
            assert self.reading[name.digest] == 1, "a block is copied twice at the same time"

    def _read_copy(self, effect: CopyBlocks) -> None:
        store = self.stores[effect.source]
        found = [(name, store.blocks.get(name.digest)) for name in effect.names]
        named = [(name, keys) for name, keys in found if keys is not None]
        self.seen[f"copied from {effect.source}"] += len(named)

        def write() -> None:
            self.reading.subtract(name.digest for name in effect.names)
            self._write(effect.copy_id, effect.target, named)

        self.lanes[effect.target].append(write)

    def _queue_run(self, fetch: FetchBlocks, start: int) -> None:
        """The blocks of one tier, before those of the next are looked for."""
        tier, end = fetch.tiers[start], start
        while end < len(fetch.tiers) and fetch.tiers[end] is tier:
            end += 1
        self.lanes[tier].append(lambda: self._read_run(fetch, start, end))

    def _read_run(self, fetch: FetchBlocks, start: int, end: int) -> None:
        store, chance = self.stores[fetch.tiers[start]], self.chance
        missing: tuple[bytes, ...] = ()
        corrupt: tuple[bytes, ...] = ()
        done, problem = start, ""
        stopped = fetch.fetch_id in self.stopped
        while done < end and not (stopped or missing or corrupt or problem):
            digest, target = fetch.names[done].digest, fetch.target_blocks[done]
            keys = store.blocks.get(digest)
            if digest not in store.blocks:
                missing = (digest,)
            elif keys is None:
                corrupt = (digest,)
                del store.blocks[digest]
            elif chance.randrange(15) == 0:
                problem = "broken"
            else:
                assert digest in digests_of(keys)
                self.engine.kv[target] = list(keys)
                done += 1
                continue
            self.engine.kv[target] = [NONSENSE] * self.engine.block_size
        if done == end < len(fetch.names):
            self._queue_run(fetch, end)
            return
        del self.fetching[fetch.fetch_id]
        self.stopped.discard(fetch.fetch_id)
        outcome = "spoilt" if corrupt else "missing" if missing else problem or "whole"
        self.seen["fetches stopped in time" if stopped else f"fetches {outcome}"] += 1
        self.seen["blocks fetched"] += done
        seconds = chance.choice([0.00001, 0.5]) if chance.randrange(20) == 0 else 0.00001
        self.events.append(
            BlocksFetched(fetch.fetch_id, done, done, seconds, corrupt, missing, problem)
        )
