"""What lies in one slower tier of a simulated process: names without bytes, and what goes wrong
there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tandem.facts.kv import BlockName
from tandem.policy.chance import draw


@dataclass(slots=True, eq=False)
class SimulatedStore:
    """`blocks` by digest, the one stored first first; what was `lost` nobody has reported. What is
    `corrupt` is found out by whoever reads it. While the store is not `up` it can be neither read
    nor written; its content outlives that. While it is `full`, of what is to be written only the
    first half gets there."""

    blocks: dict[bytes, BlockName] = field(default_factory=dict)
    corrupt: set[bytes] = field(default_factory=set)
    lost: set[bytes] = field(default_factory=set)
    up: bool = True
    full: bool = False

    def put(self, names: Sequence[BlockName]) -> tuple[bytes, ...]:
        """Write them, whatever was there before; gives the digests of those that are written."""
        if self.full:
            names = names[: len(names) // 2]
        written = {name.digest: name for name in names}
        self.blocks.update(written)
        self.corrupt.difference_update(written)
        self.lost.difference_update(written)
        return tuple(written)

    def discard(self, digests: Iterable[bytes]) -> None:
        """Their room may be used again."""
        for digest in digests:
            self.blocks.pop(digest, None)
            self.corrupt.discard(digest)
            self.lost.discard(digest)

    def first_missing(self, names: Sequence[BlockName]) -> int:
        """How many of these, from the first on without a gap, are here."""
        for index, name in enumerate(names):
            if name.digest not in self.blocks:
                return index
        return len(names)

    def first_corrupt(self, names: Sequence[BlockName]) -> int:
        """How many of these, from the first on without a gap, are what they should be."""
        for index, name in enumerate(names):
            if name.digest in self.corrupt:
                return index
        return len(names)

    def spoil(self) -> None:
        """From now on what lies here is not what was written."""
        self.corrupt.update(self.blocks)

    def lose(self, share: float) -> None:
        """The chains of this share of it are gone, and nobody reports it."""
        parents = {digest: name.parent for digest, name in self.blocks.items()}
        lost = lost_share(tuple(self.blocks), parents, share)
        self.discard(lost)
        self.lost.update(lost)


def lost_share(
    digests: Sequence[bytes], parents: Mapping[bytes, bytes], share: float
) -> tuple[bytes, ...]:
    """The blocks of those chains that lay on a part of a tier with this share of it. Whole chains
    are lost, as their first block decides where a chain lies."""
    lost: dict[bytes, bool] = {}

    def is_lost(digest: bytes) -> bool:
        way = []
        while digest not in lost and parents.get(digest) in parents:
            way.append(digest)
            digest = parents[digest]
        fate = lost.setdefault(digest, draw(0, "lost share", digest.hex()) < share)
        lost.update(dict.fromkeys(way, fate))
        return fate

    return tuple(digest for digest in digests if share >= 1 or is_lost(digest))
