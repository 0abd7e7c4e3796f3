"""Hot-block replication: which blocks are asked for so often that another pool process should hold
them too."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.facts.kv_tiers import BlockName, placement

# Blocks whose reads are counted; beyond that the oldest are forgotten.
COUNTED_BLOCKS = 1 << 16


@dataclass(frozen=True, slots=True)
class HotBlocksConfig:
    """What was read `hot_reads` times within `window_ns` is copied, to so many processes that
    `replicas` have it."""

    replicas: int = 2
    hot_reads: int = 2
    window_ns: int = 60_000_000_000


@dataclass(slots=True)
class _Reads:
    since_ns: int
    count: int = 0
    sent_to: set[str] = field(default_factory=set)


class HotBlocks:
    """By digest. One copy at a time is under way to each process."""

    def __init__(self, node: str, config: HotBlocksConfig) -> None:
        self._node = node
        self._config = config
        self._reads: dict[bytes, _Reads] = {}
        self._busy: set[str] = set()

    def read(self, names: Sequence[BlockName], now_ns: int) -> list[BlockName]:
        """These were read. Gives those in demand."""
        hot = []
        for name in names:
            reads = self._reads.get(name.digest)
            if reads is None or now_ns - reads.since_ns > self._config.window_ns:
                reads = self._reads[name.digest] = _Reads(now_ns)
            reads.count += 1
            if reads.count >= self._config.hot_reads:
                hot.append(name)
        while len(self._reads) > COUNTED_BLOCKS:
            del self._reads[next(iter(self._reads))]
        return hot

    def copies(
        self, hot: Sequence[BlockName], siblings: Sequence[str]
    ) -> list[tuple[str, list[BlockName]]]:
        """To which of the other processes which of these should go now. Each is told once, and is
        busy until `ended`."""
        orders: dict[bytes, list[str]] = {}
        found: dict[str, list[BlockName]] = {}
        for name in hot:
            order = orders.get(name.first)
            if order is None:
                order = placement(name.first, (self._node, *siblings))[: self._config.replicas]
                orders[name.first] = order
            reads = self._reads.get(name.digest)
            for node in order:
                if reads is None or node == self._node or node in self._busy:
                    continue
                if node not in reads.sent_to:
                    reads.sent_to.add(node)
                    found.setdefault(node, []).append(name)
        self._busy.update(found)
        return list(found.items())

    def ended(self, node: str) -> None:
        """A copy to this process is over."""
        self._busy.discard(node)

    def forget(self, node: str) -> None:
        """The process is gone, with what it held."""
        for reads in self._reads.values():
            reads.sent_to.discard(node)
