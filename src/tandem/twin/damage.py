"""What goes wrong inside the slower tiers: blocks are spoilt, unknown to everybody until they are
read, and chains are lost along with the part of a tier that held them."""

from collections.abc import Callable, Mapping, Sequence

from tandem.cluster.tiers.store import TierMoves
from tandem.facts.fleet import Tier
from tandem.policy.chance import draw

# Who tells the router: worker, tier, (blocks given up, new blocks), now.
Report = Callable[[str, Tier, tuple[tuple[bytes, ...], tuple[bytes, ...]], int], None]


class Damage:
    """Owns the spoilt blocks of each tier. A block that is written anew is sound again. `parents`
    are those of every block ever written."""

    def __init__(
        self,
        hierarchies: Mapping[str, TierMoves],
        parents: Mapping[bytes, bytes],
        report: Report,
    ) -> None:
        self._hierarchies = hierarchies
        self._parents = parents
        self._report = report
        self._spoilt: dict[tuple[str, Tier], set[bytes]] = {}

    def spoil(self, tier: Tier, worker: str) -> None:
        """From now on what lies there is not what was written; an empty `worker` means all."""
        for name in self._having(tier, worker):
            listing = self._hierarchies[name].tiers[tier].listing()
            self._spoilt.setdefault(_place(name, tier), set()).update(listing)

    def lose(self, tier: Tier, worker: str, share: float, now_ns: int) -> None:
        """What lies there is gone, or the chains of this share of it."""
        for name in self._having(tier, worker):
            listing = self._hierarchies[name].tiers[tier].listing()
            self._drop(name, tier, lost_share(listing, self._parents, share), now_ns)

    def sound(self, worker: str, tier: Tier, digests: Sequence[bytes], now_ns: int) -> bool:
        """Whether what was read is what was written; what is not is dropped."""
        among = self._spoilt.get(_place(worker, tier), set())
        spoilt = tuple(digest for digest in digests if digest in among)
        self._drop(worker, tier, spoilt, now_ns)
        return not spoilt

    def mended(self, worker: str, tier: Tier, digests: Sequence[bytes]) -> None:
        """These were written, whatever was there before."""
        if spoilt := self._spoilt.get(_place(worker, tier)):
            spoilt.difference_update(digests)

    def _having(self, tier: Tier, worker: str) -> list[str]:
        """Of the shared pool one of its users is enough."""
        names = [name for name, each in self._hierarchies.items() if tier in each.tiers]
        return names[:1] if tier is Tier.REMOTE else [n for n in names if worker in ("", n)]

    def _drop(self, worker: str, tier: Tier, digests: Sequence[bytes], now_ns: int) -> None:
        store = self._hierarchies[worker].tiers[tier]
        gone = tuple(digest for digest in digests if store.resident(digest))
        store.drop(gone)
        self.mended(worker, tier, digests)
        self._report("" if tier is Tier.REMOTE else worker, tier, (gone, ()), now_ns)


def _place(worker: str, tier: Tier) -> tuple[str, Tier]:
    return "" if tier is Tier.REMOTE else worker, tier


def lost_share(
    digests: Sequence[bytes], parents: Mapping[bytes, bytes], share: float
) -> tuple[bytes, ...]:
    """The blocks of those chains that lay on a process with this share of the tier. Whole chains
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
