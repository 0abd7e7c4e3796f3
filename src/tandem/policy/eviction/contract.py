"""The port of eviction policies: which block goes when a cache is full."""

from collections.abc import Hashable
from typing import Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Eviction(Protocol[Key]):
    """The order of one cache's residents. The caller owns the content and the capacity; it says
    what was inserted, touched and removed, and asks for victims. `now_ns` ages pins and never runs
    back.
    """

    def insert(self, key: Key, now_ns: int, /) -> None:
        """A key that is not resident becomes so."""
        ...

    def touch(self, key: Key, now_ns: int, /) -> None:
        """A resident was hit."""
        ...

    def remove(self, key: Key, /) -> None:
        """A resident left: as the victim last named, or for another reason than eviction."""
        ...

    def victim(self, now_ns: int, /) -> Key | None:
        """The resident to give up next, still resident until `remove`; None when there is none or
        all are pinned."""
        ...
