"""Max-min shares of counted places: who holds how many, and whose goes when they are full.

Whoever is alone may hold all of them, and a newcomer always finds room: the largest holder gives
way, down to equal shares (max-min fairness).
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Holders(Generic[Item]):
    """Items by owner, each owner's in the order in which they came. O(1), but for `gives_way`,
    which is linear in the owners that hold anything. Nobody is remembered who holds nothing."""

    def __init__(self) -> None:
        self._owners: dict[Item, str] = {}
        self._items: dict[str, dict[Item, None]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, item: Item) -> bool:
        return item in self._owners

    def add(self, item: Item, owner: str) -> None:
        """One more, the newest of its owner's; an item that is here becomes that again."""
        self.discard(item)
        self._owners[item] = owner
        self._items.setdefault(owner, {})[item] = None

    def discard(self, item: Item) -> None:
        owner = self._owners.pop(item, None)
        if owner is None:
            return
        del self._items[owner][item]
        if not self._items[owner]:
            del self._items[owner]

    def gives_way(self, newcomer: str) -> str | None:
        """The owner that gives up a place for this one; None where that would only turn the two
        round. Of several, the first by name."""
        largest = min(self._items, key=lambda owner: (-self.count(owner), owner), default=None)
        if largest is None or self.count(largest) < self.count(newcomer) + 2:
            return None
        return largest

    def count(self, owner: str) -> int:
        return len(self._items.get(owner, ()))

    def oldest(self, owner: str) -> Item:
        """Of an owner that holds something."""
        return next(iter(self._items[owner]))

    def newest(self, owner: str) -> Item:
        """Of an owner that holds something."""
        return next(reversed(self._items[owner]))
