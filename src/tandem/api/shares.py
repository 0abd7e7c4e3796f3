"""A budget that all accounts share: who holds how much, and whose goes when it is full.

Whoever is alone may hold all of it, and a newcomer always finds room: the largest account gives
way, its newest first, down to equal shares (max-min fairness). Bookkeeping alone.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Shares(Generic[Item]):
    """Amounts (bytes, places) by item and account. O(1) while there is room; where there is none,
    linear in the accounts that hold anything. Nobody is remembered who holds nothing."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._accounts: dict[Item, str] = {}
        # Each account's items, in the order in which they came.
        self._amounts: dict[str, dict[Item, int]] = {}
        self._sums: dict[str, int] = {}
        self._keeps: set[Item] = set()

    def victims(self, account: str, more: int) -> list[Item] | None:
        """Who gives way so that `account` gets so much more; None where nobody who holds more than
        it would could. Changes nothing."""
        missing = self.held + more - self.most
        if missing <= 0:
            return []
        would_hold = self._sums.get(account, 0) + more
        sums, stacks = dict(self._sums), dict[str, list[Item]]()
        found: list[Item] = []
        while missing > 0:
            largest = max(sums, key=lambda each: sums[each], default=None)
            if largest is None or sums[largest] <= would_hold:
                return None
            if largest not in stacks:
                stacks[largest] = [i for i in self._amounts[largest] if i not in self._keeps]
            if not stacks[largest]:
                # All that it holds is there to stay.
                del sums[largest]
                continue
            item = stacks[largest].pop()
            found.append(item)
            sums[largest] -= self._amounts[largest][item]
            missing -= self._amounts[largest][item]
        return found

    def take(self, item: Item, account: str, more: int, *, keeps: bool = False) -> list[Item]:
        """Counts so much more for `item`, which never gives way if it `keeps`. Gives those that
        gave way, which are forgotten here already. Raises `OverflowError` where nobody does."""
        victims = self.victims(account, more)
        if victims is None:
            raise OverflowError(f"{account!r} has its share of {self.most}")
        for victim in victims:
            self.give_back(victim)
        self._accounts[item] = account
        amounts = self._amounts.setdefault(account, {})
        amounts[item] = amounts.get(item, 0) + more
        self._sums[account] = self._sums.get(account, 0) + more
        self.held += more
        if keeps:
            self._keeps.add(item)
        return victims

    def give_back(self, item: Item) -> None:
        """All that it holds, if anything."""
        account = self._accounts.pop(item, None)
        if account is None:
            return
        self._keeps.discard(item)
        amount = self._amounts[account].pop(item)
        self.held -= amount
        self._sums[account] -= amount
        if not self._amounts[account]:
            del self._amounts[account], self._sums[account]
