"""Max-min fair sharing: who holds how much of something, and whose goes when it is full.

Whoever is alone may hold all of it, and a newcomer always finds room: the owner that holds most
gives way, down to equal shares. `FairShares` counts, and says which owner that is; `FairBudget`
adds a capacity, and says which items go. Bookkeeping alone: no sockets, no clock.
"""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class FairShares(Generic[Item]):
    """Amounts (bytes, places) by item and owner, each owner's items in the order in which they
    came. O(1), but for `gives_way`, which is linear in the owners that hold anything. Nobody is
    remembered who holds nothing."""

    def __init__(self) -> None:
        # Of all owners together.
        self.held = 0
        self._owners: dict[Item, str] = {}
        self._amounts: dict[str, dict[Item, int]] = {}
        self._sums: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, item: Item) -> bool:
        return item in self._owners

    def held_by(self, owner: str) -> int:
        return self._sums.get(owner, 0)

    def add_amount(self, item: Item, owner: str, amount: int) -> None:
        """Counts so much more for an item, which keeps its place among its owner's."""
        self._owners[item] = owner
        amounts = self._amounts.setdefault(owner, {})
        amounts[item] = amounts.get(item, 0) + amount
        self._sums[owner] = self._sums.get(owner, 0) + amount
        self.held += amount

    def add(self, item: Item, owner: str) -> None:
        """An item of amount 1, the newest of its owner's; one that is here becomes that again."""
        self.discard(item)
        self.add_amount(item, owner, 1)

    def discard(self, item: Item) -> None:
        """Nothing happens to an item that is not here."""
        owner = self._owners.pop(item, None)
        if owner is None:
            return
        amount = self._amounts[owner].pop(item)
        self.held -= amount
        self._sums[owner] -= amount
        if not self._amounts[owner]:
            del self._amounts[owner], self._sums[owner]

    def gives_way(self, newcomer: str) -> str | None:
        """The owner that gives up an item of amount 1 for one of the newcomer's; None where that
        would only turn the two round."""
        return _largest_above(self._sums, self.held_by(newcomer) + 1)

    def oldest(self, owner: str) -> Item:
        """Of an owner that holds something."""
        return next(iter(self._amounts[owner]))

    def newest(self, owner: str) -> Item:
        """Of an owner that holds something."""
        return next(reversed(self._amounts[owner]))

    def amounts_of(self, owner: str) -> Mapping[Item, int]:
        """The items of an owner that holds something, the oldest first."""
        return self._amounts[owner]

    def sums(self) -> dict[str, int]:
        """What each owner holds: a copy."""
        return dict(self._sums)


class FairBudget(Generic[Item]):
    """`capacity` in all, of which items take amounts. Where there is no room, the largest owner's
    newest items give way. O(1) while there is room; else linear in the owners."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._shares: FairShares[Item] = FairShares()
        self._kept: set[Item] = set()

    @property
    def held(self) -> int:
        return self._shares.held

    def victims(self, owner: str, amount: int) -> list[Item] | None:
        """Who gives way so that `owner` gets so much more; None where nobody who holds more than
        it would could. Changes nothing."""
        missing = self._shares.held + amount - self.capacity
        if missing <= 0:
            return []
        would_hold = self._shares.held_by(owner) + amount
        sums = self._shares.sums()
        stacks: dict[str, list[tuple[Item, int]]] = {}
        found: list[Item] = []
        while missing > 0:
            largest = _largest_above(sums, would_hold)
            if largest is None:
                return None
            if largest not in stacks:
                items = self._shares.amounts_of(largest).items()
                stacks[largest] = [each for each in items if each[0] not in self._kept]
            if not stacks[largest]:
                # All that it holds is there to stay.
                del sums[largest]
                continue
            item, freed = stacks[largest].pop()
            found.append(item)
            sums[largest] -= freed
            missing -= freed
        return found

    def reserve(self, item: Item, owner: str, amount: int, *, keeps: bool = False) -> list[Item]:
        """Counts so much more for `item`, which never gives way if it `keeps`. Gives those that
        gave way, which are forgotten here already. Raises `OverflowError` where nobody does."""
        victims = self.victims(owner, amount)
        if victims is None:
            raise OverflowError(f"{owner!r} has its share of {self.capacity}")
        for victim in victims:
            self.give_back(victim)
        self._shares.add_amount(item, owner, amount)
        if keeps:
            self._kept.add(item)
        return victims

    def give_back(self, item: Item) -> None:
        """All that the item holds, if anything."""
        self._shares.discard(item)
        self._kept.discard(item)


def _largest_above(sums: Mapping[str, int], would_hold: int) -> str | None:
    """The owner that holds most, if that is more than the newcomer would hold: else giving way
    would only turn the two round. Of several, the first by name."""
    largest = min(sums, key=lambda owner: (-sums[owner], owner), default=None)
    return None if largest is None or sums[largest] <= would_hold else largest
