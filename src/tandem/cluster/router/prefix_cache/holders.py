"""Interned sets of block holders: each distinct set of (worker, tier) is kept once, however many
blocks share it.

A place is one tier of one holder, and a set is the bits of one integer.
"""

from collections.abc import Iterator

from tandem.cluster.audit import invariant
from tandem.facts.fleet import Tier

# A hexadecimal digit a holder: one bit for each tier.
BITS = 4
TIER_BITS = {Tier.DEVICE: 1, Tier.HOST: 2, Tier.DISK: 4, Tier.REMOTE: 8}
# No holder has this number: its digit in a reach says "in the shared pool".
SHARED_POOL = 0


class HolderSet:
    """`places` has a bit for each place, and `uses` counts who refers to the set.

    `reach` says which prefixes go on through a block that lies in these places. In the digit of a
    holder, bit 0 says "on its device", bit 1 "on device or host", bit 2 "on any tier of its own".
    """

    __slots__ = ("places", "reach", "uses")

    def __init__(self, places: int, reach: int) -> None:
        self.places = places
        self.reach = reach
        self.uses = 0


class HolderSets:
    """The distinct sets, by their places, and the numbers of the holders in them."""

    def __init__(self) -> None:
        self._sets: dict[int, HolderSet] = {}
        self._numbers: dict[str, int] = {}
        self._names: list[str] = [""]
        self._free_numbers: list[int] = []
        # Bit 0 of every digit: picks one tier out of a set.
        self._ones = 1

    def __len__(self) -> int:
        return len(self._sets)

    def place(self, holder: str, tier: Tier) -> int:
        """The bit of one tier of a holder, which gets a number if it has none."""
        number = self._numbers.get(holder)
        if number is None:
            if not self._free_numbers:
                self._free_numbers.append(len(self._names))
                self._ones |= 1 << BITS * len(self._names)
                self._names.append("")
            number = self._numbers[holder] = self._free_numbers.pop()
            self._names[number] = holder
        return TIER_BITS[tier] << BITS * number

    def retire(self, holder: str) -> None:
        """The holder is gone, and no block lies with it any more: its number is free again."""
        number = self._numbers.pop(holder)
        self._names[number] = ""
        self._free_numbers.append(number)

    def use(self, places: int) -> HolderSet:
        """One more use of the set of these places."""
        holders = self._sets.get(places)
        if holders is None:
            holders = self._sets[places] = HolderSet(places, self._reach(places))
        holders.uses += 1
        return holders

    def release(self, holders: HolderSet) -> None:
        holders.uses -= 1
        if not holders.uses:
            del self._sets[holders.places]

    def _reach(self, places: int) -> int:
        ones = self._ones
        device, host = places & ones, places & ones << 1
        disk, remote = places & ones << 2, places & ones << 3
        on_host = device << 1 | host
        reach = device | on_host | on_host << 1 | disk
        return reach | 1 << BITS * SHARED_POOL if remote else reach

    def digits(self, reach: int) -> Iterator[tuple[str, int]]:
        """The holders in a reach with their digits; the shared pool's name is empty."""
        names = self._names
        if reach.bit_count() > len(names) // 4:
            for number, digit in enumerate(f"{reach:x}"[::-1]):
                if digit != "0":
                    yield names[number], int(digit)
        else:
            while reach:
                number = (reach.bit_length() - 1) // BITS
                highest = reach >> BITS * number
                reach ^= highest << BITS * number
                yield names[number], highest

    def audit(self, uses: dict[int, int]) -> None:
        """Assert that the sets are those in use, by their places. For tests."""
        counted = {places: holders.uses for places, holders in self._sets.items()}
        invariant(uses == counted, "sets of holders are kept while runs use them")
