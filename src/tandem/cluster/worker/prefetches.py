"""Prefetches of a worker: blocks of a paused session come back to the device before its next call.

They take nothing that is expected to be used before, no more than a share of the device, and
nothing that running sequences are about to need. What has come is an ordinary cached block of a
paused session: evicted when others need its room more.
"""

from dataclasses import dataclass
from itertools import count

from tandem.cluster.audit import invariant
from tandem.cluster.worker.block_pool import BlockPool
from tandem.facts.kv import BlockName
from tandem.messages.worker import BlocksPrefetched, PrefetchBlocks

# So many prefetches may be under way, so that what requests wait for is not held up; and so many
# wait for that.
MOST_UNDER_WAY = 2
MOST_WAITING = 256
# Prefetched blocks that were not used yet may be one in so many of the device.
DEVICE_PART = 4


@dataclass(frozen=True, slots=True)
class Returning:
    """A session that is expected back at `return_ns`, and the blocks that it will ask for."""

    session: bytes
    tenant: str
    names: tuple[BlockName, ...]
    return_ns: int


@dataclass(slots=True)
class Prefetch:
    """One under way: `blocks` are being filled with the names behind those in the `cached` ones.
    The session may be back already."""

    returning: Returning
    cached: list[int]
    blocks: list[int]
    ordered: bool = False
    back: bool = False

    @property
    def names(self) -> tuple[BlockName, ...]:
        first = len(self.cached)
        return self.returning.names[first : first + len(self.blocks)]


class Prefetches:
    """`filling` are the digests that are on their way."""

    def __init__(self, pool: BlockPool) -> None:
        self.filling: dict[bytes, None] = {}
        self._pool = pool
        self._ids = count()
        self._waiting: dict[bytes, Returning] = {}
        self._under_way: dict[int, Prefetch] = {}
        # Of each session that is not back yet, whose tenant has prefetched for it.
        self._ahead: dict[bytes, str] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is wanted or under way."""
        return not (self._waiting or self._under_way)

    @property
    def next_starts(self) -> bool:
        """Whether a prefetch waits that may start."""
        return bool(self._waiting) and len(self._under_way) < MOST_UNDER_WAY

    def add(self, returning: Returning) -> None:
        """This session's blocks are wanted, unless they are on their way."""
        session = returning.session
        under_way = any(each.returning.session == session for each in self._under_way.values())
        if not under_way and len(self._waiting) < MOST_WAITING:
            self._waiting[session] = returning

    def start_next(self, spare_blocks: int) -> None:
        """Of those that wait, the one that is expected back first: reserve blocks for as much of
        what is not on the device as may be brought; `spare_blocks` are needed by nobody who
        runs."""
        session = min(self._waiting, key=lambda each: (self._waiting[each].return_ns, each))
        returning, pool = self._waiting.pop(session), self._pool
        digests = [name.digest for name in returning.names]
        cached = pool.cached_prefix(digests)
        # Owned meanwhile, so that the one end does not push out the other.
        pool.share(cached, session)
        room = min(spare_blocks - len(cached), self._room(returning.tenant))
        blocks: list[int] = []
        for name in returning.names[len(cached) :]:
            block = None
            if len(blocks) < room and not pool.holds(name.digest):
                block = pool.allocate_from_later(returning.return_ns)
            if block is None:
                break
            blocks.append(block)
        if not blocks:
            pool.release(cached)
            pool.pause(session, returning.return_ns)
            return
        prefetch = Prefetch(returning, cached, blocks)
        self._under_way[next(self._ids)] = prefetch
        self.filling.update(dict.fromkeys(name.digest for name in prefetch.names))

    def take_orders(self, touched: set[int]) -> list[PrefetchBlocks]:
        """The prefetches that were not ordered yet, into blocks that no step still touches."""
        orders: list[PrefetchBlocks] = []
        for prefetch_id, prefetch in self._under_way.items():
            if not prefetch.ordered and touched.isdisjoint(prefetch.blocks):
                prefetch.ordered = True
                orders.append(PrefetchBlocks(prefetch_id, prefetch.names, tuple(prefetch.blocks)))
        return orders

    def end(self, event: BlocksPrefetched) -> list[tuple[int, BlockName]]:
        """Nobody writes to the blocks any more. Gives those that are cached now."""
        prefetch = self._under_way.pop(event.prefetch_id)
        pool, returning, names = self._pool, prefetch.returning, prefetch.names
        session, arrived = returning.session, list(zip(prefetch.blocks, names, strict=True))
        for name in names:
            del self.filling[name.digest]
        cached = [
            (block, name)
            for block, name in arrived[: event.arrived_blocks]
            if pool.commit(block, name.digest, name.parent, session)
        ]
        pool.release([*prefetch.cached, *prefetch.blocks])
        if not prefetch.back:
            pool.pause(session, returning.return_ns)
            self._ahead[session] = returning.tenant
        return cached

    def resume(self, session: bytes) -> None:
        """The session is back: what was brought for it is used, and no more is brought."""
        self._ahead.pop(session, None)
        self._waiting.pop(session, None)
        for prefetch in self._under_way.values():
            if prefetch.returning.session == session:
                prefetch.back = True

    def blocks_under_way(self) -> list[list[int]]:
        """The block tables of all that is under way."""
        return [[*each.cached, *each.blocks] for each in self._under_way.values()]

    def audit(self) -> None:
        """Assert that what is on its way belongs to a prefetch."""
        names = {name.digest for each in self._under_way.values() for name in each.names}
        invariant(names == self.filling.keys(), "what is being prefetched has a prefetch")

    def _room(self, tenant: str) -> int:
        """How many blocks more may be brought for this tenant: those that have any share alike."""
        held = {tenant: 0}
        for session, each in list(self._ahead.items()):
            idle = self._pool.sessions.idle_of(session)
            if idle:
                held[each] = held.get(each, 0) + idle
            else:
                del self._ahead[session]
        for prefetch in self._under_way.values():
            owner = prefetch.returning.tenant
            held[owner] = held.get(owner, 0) + len(prefetch.blocks)
        return self._pool.block_count // DEVICE_PART // len(held) - held[tenant]
