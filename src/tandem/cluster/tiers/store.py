"""Bookkeeping of one tier: which KV blocks it holds, expects and evicts, by hash."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from tandem.policy.eviction.policies import Eviction


class Stored(Struct, frozen=True):
    """What a store changed: blocks that are new here, in chain order, blocks that made room for
    them, in order of eviction, and newcomers that `stayed_out`: all else is pinned, or their tenant
    has had its share."""

    added: tuple[bytes, ...]
    evicted: tuple[bytes, ...]
    stayed_out: tuple[bytes, ...]


def nothing_in_excess(_now_ns: int) -> bytes | None:
    """Nobody has a quota."""
    return None


class TierStore:
    """At most `capacity_blocks` blocks, in the order of `eviction`. `excess` names a block that
    must go though there is room, while there is one.

    Chains are inserted and touched last block first, so that the start of a prompt, which others
    share, is the last to go.
    """

    def __init__(
        self,
        capacity_blocks: int,
        eviction: Eviction[bytes],
        excess: Callable[[int], bytes | None] = nothing_in_excess,
    ) -> None:
        assert capacity_blocks > 0
        self.capacity_blocks = capacity_blocks
        self._eviction = eviction
        self._excess = excess
        self._resident: dict[bytes, None] = {}
        self._expected: dict[bytes, None] = {}

    @property
    def blocks(self) -> int:
        return len(self._resident)

    def resident(self, digest: bytes) -> bool:
        return digest in self._resident

    def listing(self) -> tuple[bytes, ...]:
        """Every block that is here, the one stored first first."""
        return tuple(self._resident)

    def expect(self, digests: Iterable[bytes]) -> tuple[bytes, ...]:
        """Those of `digests` that should be copied here: neither resident nor on their way. From
        now on they are on their way, until `store` or `give_up`."""
        resident, expected = self._resident, self._expected
        wanted = tuple(
            [
                digest
                for digest in dict.fromkeys(digests)
                if digest not in resident and digest not in expected
            ]
        )
        self._expected.update(dict.fromkeys(wanted))
        return wanted

    def give_up(self, digests: Sequence[bytes]) -> None:
        """These blocks will not arrive."""
        for digest in digests:
            self._expected.pop(digest, None)

    def store(self, digests: Sequence[bytes], now_ns: int) -> Stored:
        """Blocks of one chain, in its order, arrived. Those that are here already are touched."""
        resident, expected, eviction = self._resident, self._expected, self._eviction
        incoming: dict[bytes, None] = {}
        for digest in reversed(digests):
            expected.pop(digest, None)
            if digest in resident:
                eviction.touch(digest, now_ns)
            else:
                incoming[digest] = resident[digest] = None
                eviction.insert(digest, now_ns)
        evicted, stayed_out = list[bytes](), list[bytes]()
        while True:
            victim = self._excess(now_ns)
            if victim is None and len(resident) > self.capacity_blocks:
                victim = eviction.victim(now_ns)
                # Newcomers bear no pin yet: where all else does, they stay out.
                assert victim is not None
            if victim is None:
                break
            self._forget(victim)
            if victim in incoming:
                del incoming[victim]
                stayed_out.append(victim)
            else:
                evicted.append(victim)
        return Stored(tuple(reversed(incoming)), tuple(evicted), tuple(stayed_out))

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

    def _forget(self, digest: bytes) -> None:
        del self._resident[digest]
        self._eviction.remove(digest)
