"""What a worker knows of the shared pool's contents: what it wrote there or read from there
itself."""

from collections.abc import Iterable, Sequence

from tandem.facts.kv_tiers import BlockName

# So many blocks are remembered, the oldest forgotten first.
REMEMBERED_BLOCKS = 65_536


class SharedContent:
    """The processes of the pool say themselves what they hold, and want nothing twice; this only
    spares copies. Nothing is offered while the pool is not `there`."""

    def __init__(self) -> None:
        self.there = False
        self._known: dict[bytes, None] = {}
        self._expected: dict[bytes, None] = {}
        # Fetched from some tier, and not sealed yet.
        self._came: dict[bytes, None] = {}

    def wanted(self, names: Sequence[BlockName]) -> tuple[BlockName, ...]:
        """Those just sealed that are to be offered. From now on they are on their way, until
        `kept`."""
        found = []
        for name in names:
            digest = name.digest
            came = self._came.pop(digest, 0) is None
            # What had to be computed again though it was written there is probably lost.
            if not self.there or digest in self._expected or (came and digest in self._known):
                continue
            self._expected[digest] = None
            found.append(name)
        return tuple(found)

    def kept(self, names: Iterable[BlockName], digests: Iterable[bytes]) -> None:
        """These are not on their way any more; the pool has `digests` of them."""
        for name in names:
            self._expected.pop(name.digest, None)
        _remember(self._known, digests)

    def came(self, digests: Iterable[bytes], *, shared: bool) -> None:
        """These were fetched, from the pool if `shared`."""
        digests = tuple(digests)
        _remember(self._came, digests)
        if shared:
            _remember(self._known, digests)

    def lost(self, digests: Iterable[bytes]) -> None:
        """The pool does not have these."""
        for digest in digests:
            self._known.pop(digest, None)

    def lose_all(self) -> None:
        """Somebody of the pool is gone, and nobody knows with what."""
        self._known.clear()


def _remember(known: dict[bytes, None], digests: Iterable[bytes]) -> None:
    for digest in digests:
        known.pop(digest, None)
        known[digest] = None
    while len(known) > REMEMBERED_BLOCKS:
        del known[next(iter(known))]
