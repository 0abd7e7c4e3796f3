"""Sliding windows in memory that does not grow: the tail of what was measured, from a histogram of
logarithmic buckets (as DDSketch, VLDB 2019, with bounded range), and a sum.
"""

from array import array
from bisect import bisect_left

# A quantile is at most so much above what was measured.
GROWTH = 1.05
# Ratios from 1/64 to 64; what lies beyond counts as the first or the last.
_LOWEST, _HIGHEST = 1.0 / 64.0, 64.0
# The window moves on by one slice at a time.
SLICES = 6


def _bounds() -> tuple[float, ...]:
    """Upper ends of the buckets, by products alone: the same bits everywhere. One of them is 1, so
    that no ratio below it is taken for one above."""
    above, below = [1.0], [1.0]
    while above[-1] < _HIGHEST:
        above.append(above[-1] * GROWTH)
    while below[-1] > _LOWEST:
        below.append(below[-1] / GROWTH)
    return (*reversed(below[1:]), *above)


BOUNDS = _bounds()


class SlidingTail:
    """Ratios measured in the last `window_ns`."""

    def __init__(self, window_ns: int) -> None:
        self._slice_ns = max(1, window_ns // SLICES)
        self._slices = [array("I", bytes(4 * len(BOUNDS))) for _ in range(SLICES)]
        self._counts = [0] * SLICES
        self._newest = 0

    def add(self, ratio: float, now_ns: int) -> None:
        self._move_on(now_ns)
        place = self._newest % SLICES
        self._slices[place][min(bisect_left(BOUNDS, ratio), len(BOUNDS) - 1)] += 1
        self._counts[place] += 1

    def count(self, now_ns: int) -> int:
        self._move_on(now_ns)
        return sum(self._counts)

    def quantile(self, share: float, now_ns: int) -> float:
        """At least `share` of all but one are not above it, within `GROWTH`; 0 of none. With fewer
        than 1 / (1 - share) of them it is the second largest, so that one alone is never a tail."""
        count = self.count(now_ns)
        if count < 2:
            return 0.0
        rank = int(share * (count - 1))
        seen = 0
        for bucket, bound in enumerate(BOUNDS):
            seen += sum(each[bucket] for each in self._slices)
            if seen > rank:
                return bound
        return BOUNDS[-1]

    def clear(self) -> None:
        for place in range(SLICES):
            self._clear(place)

    def _move_on(self, now_ns: int) -> None:
        newest = now_ns // self._slice_ns
        for number in range(max(self._newest + 1, newest - SLICES + 1), newest + 1):
            self._clear(number % SLICES)
        self._newest = max(self._newest, newest)

    def _clear(self, place: int) -> None:
        if self._counts[place]:
            self._slices[place] = array("I", bytes(4 * len(BOUNDS)))
            self._counts[place] = 0


class SlidingSum:
    """What was added up in the last `window_ns`."""

    def __init__(self, window_ns: int) -> None:
        self._slice_ns = max(1, window_ns // SLICES)
        self._slices = [0.0] * SLICES
        self._newest = 0

    def add(self, value: float, now_ns: int) -> None:
        self._move_on(now_ns)
        self._slices[self._newest % SLICES] += value

    def per_second(self, now_ns: int, since_ns: int) -> float:
        """Of the time that is covered, no part of which is before `since_ns`; a slice of the window
        at least."""
        self._move_on(now_ns)
        begin_ns = max(since_ns, (self._newest - SLICES + 1) * self._slice_ns)
        return sum(self._slices) / (max(now_ns - begin_ns, self._slice_ns) / 1e9)

    def _move_on(self, now_ns: int) -> None:
        newest = now_ns // self._slice_ns
        for number in range(max(self._newest + 1, newest - SLICES + 1), newest + 1):
            self._slices[number % SLICES] = 0.0
        self._newest = max(self._newest, newest)
