"""Device blocks of sessions: which cached blocks only one session has used, and which of them to
evict first while sessions pause for a tool.

Deals in block numbers and instants, never bytes. Kept by the block pool, which tells of every
commit, share, release and eviction.
"""

from bisect import bisect_left, insort

from tandem.cluster.audit import invariant
from tandem.policy.eviction.next_use import ahead_of_return_ns


class SessionBlocks:
    """A block is `private` to the session that committed it until somebody else shares it: a system
    prompt that several use is nobody's. What is private to a paused session and has no owner is
    `idle`: it is not in the pool's LRU, but goes by the instant at which the session is expected
    back. Bounded by the blocks of the pool: a session without a private block is forgotten."""

    def __init__(self) -> None:
        self.private: dict[int, bytes] = {}
        self._blocks_of: dict[bytes, dict[int, None]] = {}
        self._returns_ns: dict[bytes, int] = {}
        # Of paused sessions with any, the block to go first in front.
        self._idle: dict[bytes, dict[int, None]] = {}
        # The sessions in `_idle` by their return.
        self._order: list[tuple[int, bytes]] = []
        self.idle_blocks = 0

    def committed(self, block: int, session: bytes) -> None:
        """The session has filled this block, and nobody else has used it."""
        self.private[block] = session
        self._blocks_of.setdefault(session, {})[block] = None

    def shared(self, block: int, session: bytes) -> None:
        """A request of this session (empty: of none) uses the block from now on."""
        if self.private.get(block, session) != session:
            self._forget(block)

    def evicted(self, block: int) -> None:
        """What was in the block is gone."""
        if block in self.private:
            self._forget(block)

    def pause(self, session: bytes, return_ns: int) -> list[int]:
        """The session is expected back at `return_ns`, which replaces what was expected before.
        Gives its private blocks, in the order of their commits: those that nobody owns are to
        become `idle`. Without any, there is nothing to remember."""
        blocks = self._blocks_of.get(session)
        if blocks is None:
            return []
        if session in self._idle:
            self._unorder(session)
            insort(self._order, (return_ns, session))
        self._returns_ns[session] = return_ns
        return list(blocks)

    def resume(self, session: bytes) -> list[int]:
        """The session is back. Gives its blocks that were idle, the one to go first in front."""
        idle = self._idle.get(session, {})
        if idle:
            self._unorder(session)
            del self._idle[session]
            self.idle_blocks -= len(idle)
        self._returns_ns.pop(session, None)
        return list(idle)

    def rest(self, block: int) -> bool:
        """A block has no owner any more. Whether it is idle from now on."""
        session = self.private.get(block)
        if session is None or session not in self._returns_ns:
            return False
        if session not in self._idle:
            self._idle[session] = {}
            insort(self._order, (self._returns_ns[session], session))
        self._idle[session][block] = None
        self.idle_blocks += 1
        return True

    def wake(self, block: int) -> bool:
        """The block gets an owner. Whether it was idle."""
        session = self.private.get(block)
        idle = self._idle.get(session) if session is not None else None
        if session is None or idle is None or block not in idle:
            return False
        del idle[block]
        self.idle_blocks -= 1
        if not idle:
            self._unorder(session)
            del self._idle[session]
        return True

    def forget_all(self) -> list[int]:
        """What was in all blocks is gone, and with it the pauses. Gives those that were idle."""
        idle = [block for blocks in self._idle.values() for block in blocks]
        for kept in (self.private, self._blocks_of, self._returns_ns, self._idle):
            kept.clear()
        self._order.clear()
        self.idle_blocks = 0
        return idle

    def idle_of(self, session: bytes) -> int:
        """How many blocks of this session are idle."""
        return len(self._idle.get(session, ()))

    def last_wanted(self, now_ns: int) -> tuple[int, int] | None:
        """The idle block whose next use lies furthest ahead, and how far in nanoseconds; None when
        no block is idle."""
        if not self._order:
            return None
        # A return that is long overdue is as far away as one that is long to come: at the ends.
        (first_ns, first), (last_ns, last) = self._order[0], self._order[-1]
        ahead_ns, overdue_ns = (ahead_of_return_ns(at, now_ns) for at in (last_ns, first_ns))
        session, furthest_ns = (last, ahead_ns) if ahead_ns >= overdue_ns else (first, overdue_ns)
        return next(iter(self._idle[session])), furthest_ns

    def audit(self, unowned: set[int]) -> None:
        """Assert that idle blocks are private blocks of paused sessions, and nobody owns them."""
        idle = {block: each for each, blocks in self._idle.items() for block in blocks}
        invariant(len(idle) == self.idle_blocks, "idle blocks are counted")
        invariant(idle.keys() <= unowned, "idle blocks have no owner")
        private = all(self.private.get(block) == each for block, each in idle.items())
        invariant(private, "idle blocks are private to their session")
        known = {block: session for session, blocks in self._blocks_of.items() for block in blocks}
        invariant(known == self.private, "sessions know their private blocks")
        order = sorted((self._returns_ns[session], session) for session in self._idle)
        invariant(order == self._order, "sessions with idle blocks are ordered by their return")
        invariant(self._returns_ns.keys() <= self._blocks_of.keys(), "paused sessions have blocks")

    def _forget(self, block: int) -> None:
        """The block is private no more. It must not be idle."""
        session = self.private.pop(block)
        blocks = self._blocks_of[session]
        del blocks[block]
        if not blocks:
            del self._blocks_of[session]
            self._returns_ns.pop(session, None)

    def _unorder(self, session: bytes) -> None:
        place = bisect_left(self._order, (self._returns_ns[session], session))
        assert self._order[place][1] == session
        del self._order[place]
