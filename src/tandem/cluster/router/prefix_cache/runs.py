"""Runs: consecutive blocks of a prompt that lie in the same places, kept as one entry of the index.

A prompt of thousands of blocks is a handful of runs, and a lookup takes a step for each run rather
than for each block. A block that leaves from the middle splits its run, so nothing is assumed about
the order in which pools evict. Each distinct set of holders (worker, tier) is kept once, however
many blocks share it: a place is one tier of one holder, and a set is the bits of one integer.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from tandem.cluster.audit import invariant
from tandem.facts.fleet import Tier

# A hexadecimal digit a holder: one bit for each tier.
BITS = 4
TIER_BITS = {Tier.DEVICE: 1, Tier.HOST: 2, Tier.DISK: 4, Tier.REMOTE: 8}
# No holder has this number: its digit in a reach means "in the shared pool".
SHARED_POOL = 0


class HolderSet:
    """`places` has a bit for each place, and `uses` counts who refers to the set.

    `reach` says which prefixes go on through a block that lies in these places. In the digit of a
    holder, bit 0 means "on its device", bit 1 "on device or host", bit 2 "on any tier of its own".
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


class Run:
    """`digests` are consecutive blocks of one chain; all of them lie with exactly `holders`."""

    __slots__ = ("digests", "holders")

    def __init__(self, digests: list[bytes], holders: HolderSet) -> None:
        self.digests = digests
        self.holders = holders


def common_blocks(known: Sequence[bytes], chain: Sequence[bytes], start: int = 0) -> int:
    """How many blocks `known` shares with the chain from `start` on.

    An equal hash means equal blocks before it, so it is found by bisection.
    """
    limit = min(len(known), len(chain) - start)
    if known[limit - 1] == chain[start + limit - 1]:
        return limit
    # Most chains part early (after a system prompt), so the search widens from the beginning.
    probe = 0
    while probe < limit and known[probe] == chain[start + probe]:
        probe = 2 * probe + 1
    return bisect_left(
        range(limit),
        True,
        lo=(probe + 1) // 2,
        hi=min(probe, limit),
        key=lambda place: known[place] != chain[start + place],
    )


class BlockRuns:
    """Block hash -> the run it is in. Every known block is in exactly one run.

    Runs grow when a block is stored after the last of a run, and split when some of their blocks
    change their places. They are joined again when a report or the chain of a lookup proves that
    one follows the other.
    """

    def __init__(self, sets: HolderSets) -> None:
        self._sets = sets
        self._run_of: dict[bytes, Run] = {}

    def __len__(self) -> int:
        return len(self._run_of)

    def store(self, digests: Sequence[bytes], parents: Sequence[bytes], place: int) -> None:
        """These blocks come to a place where they were not. `parents` are the hashes before them;
        empty when they are unknown."""
        position = 0
        while position < len(digests):
            run = self._run_of.get(digests[position])
            if run is None:
                position = self._append(digests, parents, (position, place))
            else:
                first = position
                position = self._change(run, digests, (position, place))
                if parents:
                    self._join_to(parents[first], digests[first])

    def remove(self, digests: Sequence[bytes], place: int) -> None:
        """These blocks leave a place where they were."""
        position = 0
        while position < len(digests):
            run = self._run_of[digests[position]]
            position = self._change(run, digests, (position, place))

    def walk(self, chain: Sequence[bytes]) -> list[tuple[int, HolderSet]]:
        """The pieces of the chain that lie in one set of places: where each ends, and the set. Ends
        at the first unknown block. Runs that follow each other there become one."""
        pieces: list[tuple[int, HolderSet]] = []
        position = 0
        before: Run | None = None
        while position < len(chain):
            run = self._run_of.get(chain[position])
            if run is None:
                break
            # A chain enters a run at its start, unless a report named a false parent.
            aligned = run.digests[0] == chain[position]
            blocks = common_blocks(run.digests, chain, position) if aligned else 1
            position += blocks
            pieces.append((position, run.holders))
            whole = aligned and blocks == len(run.digests)
            if aligned and before is not None and before.holders is run.holders:
                run = self._join(before, run)
            before = run if whole else None
        return pieces

    def _append(
        self, digests: Sequence[bytes], parents: Sequence[bytes], start: tuple[int, int]
    ) -> int:
        """Unknown blocks from the start (position, place) on, as far as they follow each other."""
        position, place = start
        parent = parents[position] if parents else None
        run = self._run_of.get(parent) if parent is not None else None
        if run is None or run.digests[-1] != parent or run.holders.places != place:
            run = Run([], self._sets.use(place))
        while True:
            digest = digests[position]
            run.digests.append(digest)
            self._run_of[digest] = run
            position += 1
            follows = position < len(digests) and parents and parents[position] == digest
            if not follows or digests[position] in self._run_of:
                return position

    def _change(self, run: Run, digests: Sequence[bytes], start: tuple[int, int]) -> int:
        """Toggle the place of those blocks from the start (position, place) on that stand side by
        side in the run, in either order; gives the position after them."""
        position, place = start
        known, end, known_end = run.digests, len(digests), len(run.digests)
        first = _find(known, digests[position])
        low, high = first, first + 1
        position += 1
        while position < end and high < known_end and known[high] == digests[position]:
            high += 1
            position += 1
        if high == first + 1:
            while position < end and low and known[low - 1] == digests[position]:
                low -= 1
                position += 1
        places = run.holders.places ^ place
        if high - low == known_end:
            self._sets.release(run.holders)
            if places:
                run.holders = self._sets.use(places)
        else:
            self._cut_out(run, low, high)
            if places:
                self._point(Run(known[low:high], self._sets.use(places)))
            run.digests = known[:low] if low >= known_end - high else known[high:]
        if not places:
            for digest in known[low:high]:
                del self._run_of[digest]
        return position

    def _cut_out(self, run: Run, low: int, high: int) -> None:
        """The shorter end of a run beside the part between becomes a run of its own."""
        shorter = run.digests[high:] if low >= len(run.digests) - high else run.digests[:low]
        if shorter:
            self._point(Run(shorter, self._sets.use(run.holders.places)))

    def _join_to(self, parent: bytes, digest: bytes) -> None:
        """Join the run that ends with the parent, if there is one in the same places."""
        before, after = self._run_of.get(parent), self._run_of[digest]
        if (
            before is not None
            and before is not after
            and before.holders is after.holders
            and before.digests[-1] == parent
            and after.digests[0] == digest
        ):
            self._join(before, after)

    def _join(self, before: Run, after: Run) -> Run:
        """Two runs that follow each other become one; the blocks of the shorter move."""
        if len(after.digests) <= len(before.digests):
            before.digests += after.digests
            joined, moved = before, after
        else:
            after.digests = before.digests + after.digests
            joined, moved = after, before
        self._sets.release(moved.holders)
        for digest in moved.digests:
            self._run_of[digest] = joined
        return joined

    def _point(self, run: Run) -> None:
        for digest in run.digests:
            self._run_of[digest] = run

    def runs(self) -> list[Run]:
        """Every run once. For audits: it takes a step for each block."""
        return list({id(run): run for run in self._run_of.values()}.values())

    def audit(self, places: dict[bytes, int]) -> None:
        """Assert that every block of `places` is in one run, and lies just there. For tests."""
        known = {digest: run.holders.places for digest, run in self._run_of.items()}
        invariant(places == known, "blocks are known to lie where they were reported")
        runs = self.runs()
        members = [digest for run in runs for digest in run.digests]
        once = len(members) == len(set(members)) == len(self._run_of)
        invariant(once, "every block is in one run, once")
        found = all(self._run_of[digest] is run for run in runs for digest in run.digests)
        invariant(found, "the run of a block has it")
        uses: dict[int, int] = {}
        for run in runs:
            uses[run.holders.places] = uses.get(run.holders.places, 0) + 1
        self._sets.audit(uses)


def _find(digests: list[bytes], digest: bytes) -> int:
    """The place of a member; pools fill a prompt from its start and evict it from its end."""
    return len(digests) - 1 if digests[-1] == digest else digests.index(digest)
