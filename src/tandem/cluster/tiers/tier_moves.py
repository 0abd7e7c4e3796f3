"""Rules of write-through and demotion: what is copied to which tier, and what goes down when a tier
is full.

It owns hashes, never bytes or time: what must be copied is returned as moves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandem.cluster.tiers.store import TierStore
from tandem.facts.fleet import Tier


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
