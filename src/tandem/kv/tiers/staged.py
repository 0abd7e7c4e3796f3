"""Copies of sealed blocks on their way from the device to the slower tiers."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from tandem.kv.tiers.contract import Row
from tandem.kv.tiers.memory import Rows


@dataclass(slots=True)
class StagedCopy:
    """`places` are rows of the staging memory. They are freed when it is `dropped` and the last of
    its `readers` is done."""

    places: Sequence[int]
    readers: int = 0
    dropped: bool = False


class Staging:
    """Who has which rows of the staging memory. Safe to be called from several threads."""

    def __init__(self, memory: Rows) -> None:
        self._memory = memory
        self._free = list(range(len(memory) - 1, -1, -1))
        self._copies: dict[int, StagedCopy] = {}
        self._lock = Lock()

    @property
    def free_rows(self) -> int:
        return len(self._free)

    def claim(self, copy_id: int, count: int) -> StagedCopy | None:
        """Rows for a new copy; None when there are not so many left."""
        with self._lock:
            assert copy_id not in self._copies
            if count > len(self._free):
                return None
            # The copy is read by whoever fills it, first.
            copy = StagedCopy([self._free.pop() for _ in range(count)], readers=1)
            self._copies[copy_id] = copy
            return copy

    def find(self, copy_id: int) -> StagedCopy | None:
        """With one reader more, who is to say `done`; None when nothing is to be read there."""
        with self._lock:
            copy = self._copies.get(copy_id)
            if copy is not None:
                copy.readers += 1
            return copy

    def done(self, copy: StagedCopy) -> None:
        with self._lock:
            copy.readers -= 1
            self._free_unused(copy)

    def drop(self, copy_id: int) -> None:
        with self._lock:
            copy = self._copies.pop(copy_id, None)
            if copy is not None:
                copy.dropped = True
                self._free_unused(copy)

    def rows(self, copy: StagedCopy, indices: Sequence[int]) -> list[Row]:
        return [self._memory[copy.places[index]] for index in indices]

    def _free_unused(self, copy: StagedCopy) -> None:
        if copy.dropped and not copy.readers:
            self._free += copy.places
            copy.places = ()
