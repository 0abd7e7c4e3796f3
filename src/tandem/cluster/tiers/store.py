"""Bookkeeping of one tier (which KV blocks it holds, which it evicts), and the rules of write-
through and demotion between tiers. Knows hashes, never bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tandem.facts.fleet import Tier
from tandem.policy.eviction.policies import Eviction


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store changed: blocks that are new here, in chain order, and blocks that made room for
    them, in order of eviction."""

    added: tuple[bytes, ...]
    evicted: tuple[bytes, ...]


def nothing_in_excess(_now_ns: int) -> bytes | None:
    """Nobody has a quota."""
    return None


class TierStore:
    """At most `capacity_blocks` blocks, in the order of `eviction`. `excess` names a block that
    must go though there is room, while there is one.

    Chains are inserted and touched last block first, so that the start of a prompt, which others
    share, is the last to go. While `up` is false nothing is found or wanted here; the content
    outlives that.
    """

    def __init__(
        self,
        capacity_blocks: int,
        eviction: Eviction[bytes],
        excess: Callable[[int], bytes | None] = nothing_in_excess,
    ) -> None:
        assert capacity_blocks > 0
        self.capacity_blocks = capacity_blocks
        self.up = True
        self._eviction = eviction
        self._excess = excess
        self._resident: dict[bytes, None] = {}
        self._expected: dict[bytes, None] = {}

    @property
    def blocks(self) -> int:
        return len(self._resident)

    def holds(self, digest: bytes) -> bool:
        return self.up and digest in self._resident

    def listing(self) -> tuple[bytes, ...]:
        """Every block that is here, up or not, the one stored first first: the news of a worker
        that came back with its disk."""
        return tuple(self._resident)

    def prefix(self, chain: Sequence[bytes]) -> int:
        """How many blocks of `chain`, from its first on without a gap, are here."""
        return sum(1 for _ in takewhile(self.holds, chain))

    def expect(self, digests: Sequence[bytes]) -> tuple[bytes, ...]:
        """Those of `digests` that should be copied here: neither resident nor on their way. From
        now on they are on their way, until `store` or `forgo`."""
        if not self.up:
            return ()
        wanted = tuple(
            digest
            for digest in dict.fromkeys(digests)
            if digest not in self._resident and digest not in self._expected
        )
        self._expected.update(dict.fromkeys(wanted))
        return wanted

    def forgo(self, digests: Sequence[bytes]) -> None:
        """These blocks will not arrive."""
        for digest in digests:
            self._expected.pop(digest, None)

    def store(self, digests: Sequence[bytes], now_ns: int) -> Stored:
        """Blocks of one chain, in its order, arrived. Those that are here already are touched."""
        self.forgo(digests)
        incoming: dict[bytes, None] = {}
        for digest in reversed(digests):
            if digest in self._resident:
                self._eviction.touch(digest, now_ns)
            else:
                incoming[digest] = None
                self._resident[digest] = None
                self._eviction.insert(digest, now_ns)
        evicted = []
        while True:
            victim = self._excess(now_ns)
            if victim is None and len(self._resident) > self.capacity_blocks:
                victim = self._eviction.victim(now_ns)
                # Newcomers bear no pin yet: where all else does, they stay out.
                assert victim is not None
            if victim is None:
                break
            self._forget(victim)
            if victim in incoming:
                del incoming[victim]
            else:
                evicted.append(victim)
        return Stored(tuple(reversed(incoming)), tuple(evicted))

    def resident(self, digest: bytes) -> bool:
        """Whether it is here, up or not."""
        return digest in self._resident

    def has_or_expects(self, digest: bytes) -> bool:
        """Whether it is here or on its way."""
        return digest in self._resident or digest in self._expected

    def coming(self) -> tuple[bytes, ...]:
        """Every block that is on its way here."""
        return tuple(self._expected)

    def touch(self, digests: Sequence[bytes], now_ns: int) -> None:
        """These resident blocks of one chain, in its order, were read."""
        for digest in reversed(digests):
            self._eviction.touch(digest, now_ns)

    def drop(self, digests: Sequence[bytes]) -> None:
        """Forget these blocks where they are here: they were invalidated or found corrupt."""
        for digest in digests:
            if digest in self._resident:
                self._forget(digest)

    def clear(self) -> None:
        """The memory is gone: nothing is here, nothing on its way."""
        self.drop(self.listing())
        self._expected.clear()

    def _forget(self, digest: bytes) -> None:
        del self._resident[digest]
        self._eviction.remove(digest)


@dataclass(frozen=True, slots=True)
class TierMove:
    """Blocks of one chain to be copied from one tier of a worker to another."""

    source: Tier
    target: Tier
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the end of a move changed in its target tier, and the moves that follow from it."""

    added: tuple[bytes, ...]
    evicted: tuple[bytes, ...]
    moves: tuple[TierMove, ...]


class TierMoves:
    """The tiers below one worker's device. Its host memory and disk are its own; the store given as
    REMOTE is the same object for all workers.

    Blocks are written through: to the fastest tier of the worker, and to the shared pool. What the
    host memory evicts goes down to the disk; what the disk or the pool evicts is gone.
    """

    def __init__(self, tiers: Mapping[Tier, TierStore]) -> None:
        assert Tier.DEVICE not in tiers
        # Fastest first, as the enumeration is.
        self.tiers = {tier: tiers[tier] for tier in Tier if tier in tiers}

    def write_through(self, digests: Sequence[bytes]) -> list[TierMove]:
        """The copies to be made of blocks that were just sealed on the device, in chain order. A
        block that was read from a lower tier is sealed too, and so comes up to the host again."""
        local = next((tier for tier in self.tiers if tier is not Tier.REMOTE), None)
        targets = [tier for tier in self.tiers if tier in (local, Tier.REMOTE)]
        moves = [TierMove(Tier.DEVICE, tier, self.tiers[tier].expect(digests)) for tier in targets]
        return [move for move in moves if move.digests]

    def arrived(self, move: TierMove, now_ns: int) -> Arrival:
        """The bytes of a move to a tier are there. The moves returned are demotions; until they
        arrive, their blocks are found nowhere."""
        store = self.tiers[move.target]
        if not store.up:
            store.forgo(move.digests)
            return Arrival((), (), ())
        stored = store.store(move.digests, now_ns)
        moves: tuple[TierMove, ...] = ()
        if move.target is Tier.HOST and Tier.DISK in self.tiers:
            # Evicted from the tail of a chain to its start: turned round they are a chain again.
            demoted = self.tiers[Tier.DISK].expect(stored.evicted[::-1])
            moves = (TierMove(Tier.HOST, Tier.DISK, demoted),) if demoted else ()
        return Arrival(stored.added, stored.evicted, moves)

    def lost(self, move: TierMove) -> None:
        """A move to a tier was cancelled or died: its blocks may be written again."""
        self.tiers[move.target].forgo(move.digests)
