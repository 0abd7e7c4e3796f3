"""Configuration of the tiers of one process: capacities, quotas, and limits of what may be under
way."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.policy.eviction.policies import Eviction, Lru

# How many copies go on at once in a worker, and the part of a tier that one may be at most.
COPIES = 4
LEAST_SHARE = 8


@dataclass(frozen=True, slots=True)
class TierLimits:
    """At most `stagings` copies of `copy_blocks` blocks lie staged at once, and `queued_blocks`
    wait to be; as many `copies` between tiers go on in either direction, and as many blocks wait to
    go down. Fetches of one tier are judged after `trial_fetches` of `trial_tokens` in all."""

    stagings: int = 4
    copies: int = 2
    copy_blocks: int = 32
    queued_blocks: int = 4096
    trial_fetches: int = 3
    trial_tokens: int = 256

    @classmethod
    def within(cls, capacities: Iterable[int], staged_blocks: int | None = None) -> "TierLimits":
        """Of a worker with tiers of these capacities in blocks, and with room for `staged_blocks`
        beside its device (None: for as many as it likes): a long prompt pushes as many blocks out
        of the memory as it has itself, and one copy should not be most of a tier."""
        limits = cls(copies=COPIES)
        together = min((limits.copy_blocks, *(blocks // LEAST_SHARE for blocks in capacities)))
        if staged_blocks is not None:
            together = min(together, staged_blocks // limits.stagings)
        return replace(limits, copy_blocks=max(1, together))

    @property
    def staged_blocks(self) -> int:
        """The room that staging takes."""
        return self.stagings * self.copy_blocks

    @property
    def slack_blocks(self) -> int:
        """The room that a store needs beyond its tier's capacity: what arrives is written before
        what makes room for it has gone, and what goes down stays until it has arrived there."""
        return (self.stagings + 6 * self.copies) * self.copy_blocks


def least_recently_used(_capacity_blocks: int) -> Eviction[bytes]:
    """The usual order."""
    return Lru()


@dataclass(frozen=True, slots=True)
class TiersConfig:
    """`capacities` in blocks, of HOST and DISK, where they exist; a store has room for
    `limits.slack_blocks` more. `eviction` makes the order of a tier from its capacity. `found` is
    what the disk holds at the start, the one stored longest ago first. `remote`: processes of the
    shared pool may join. A tenant in `quotas` has at most that share of each tier. At most
    `pin_share` of a tier is pinned, and of a tenant in `pin_shares` at most that share of it."""

    capacities: Mapping[Tier, int]
    eviction: Callable[[int], Eviction[bytes]] = least_recently_used
    found: tuple[BlockName, ...] = ()
    remote: bool = False
    pin_share: float = 0.5
    quotas: Mapping[str, float] = field(default_factory=dict)
    pin_shares: Mapping[str, float] = field(default_factory=dict)
    limits: TierLimits = field(default_factory=TierLimits)

    def __post_init__(self) -> None:
        assert set(self.capacities) <= {Tier.HOST, Tier.DISK}
        assert all(blocks > 0 for blocks in self.capacities.values())
        assert 0.0 <= self.pin_share < 1.0
