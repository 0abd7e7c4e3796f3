"""Requests and latencies over the last minutes, in bins of some seconds: what a chart shows.

Durations are counted in buckets whose width is a sixteenth of their power of two, as in HDR
histograms: quantiles are right within 3 %, and a duration costs a shift and an increment. Buckets
of several gateways are added up, so that quantiles of all of them are as right.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from tandem.facts.overview import BinCounts, Percentiles, TimeBin

K = TypeVar("K")

BIN_NS = 5_000_000_000
# A quarter of an hour.
MOST_BINS = 180
_HALF = 16
_SHARES = (0.5, 0.9, 0.99)


class Durations:
    """Counts of durations by `buckets`. Quantiles are the middles of those."""

    __slots__ = ("buckets",)

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    def add(self, duration_ns: int, count: int = 1) -> None:
        """So many of this length."""
        shift = max(0, duration_ns.bit_length() - 5)
        bucket = shift * _HALF + (duration_ns >> shift)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def add_counted(self, buckets: Mapping[int, int]) -> None:
        """Those that were counted elsewhere."""
        _add(self.buckets, buckets)

    def quantiles_s(self, *shares: float) -> list[float]:
        """For each, so that this share of them is no longer; above 0, and in ascending order. There
        must be one."""
        buckets, total = sorted(self.buckets), self.count
        passed, place, found = 0, -1, []
        for share in shares:
            while passed < share * total:
                place += 1
                passed += self.buckets[buckets[place]]
            found.append(_middle_ns(buckets[place]) / 1e9)
        return found

    def percentiles(self) -> Percentiles | None:
        """None where there are none."""
        if not (count := self.count):
            return None
        return Percentiles(count, *self.quantiles_s(*_SHARES))


def _middle_ns(bucket: int) -> float:
    if bucket < 2 * _HALF:
        return float(bucket)
    shift = bucket // _HALF - 1
    return (bucket - shift * _HALF + 0.5) * float(1 << shift)


class OpenBin:
    """A bin that is being counted."""

    __slots__ = (
        "cached_tokens",
        "failed",
        "finished",
        "itl",
        "kept",
        "number",
        "output_tokens",
        "prompt_tokens",
        "rejected",
        "tpot",
        "ttft",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.finished = self.kept = self.failed = 0
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.rejected: dict[str, int] = {}
        self.ttft, self.tpot, self.itl = Durations(), Durations(), Durations()

    def reject(self, by: str) -> None:
        self.rejected[by] = self.rejected.get(by, 0) + 1

    def begin(self, ttft_ns: int, prompt_tokens: int, cached_tokens: int) -> None:
        """The first token of a request."""
        self.ttft.add(ttft_ns)
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    def finish(self, tpot_ns: int | None, *, kept: bool) -> None:
        """A request ended as it should."""
        self.finished += 1
        self.kept += kept
        if tpot_ns is not None:
            self.tpot.add(tpot_ns)

    def add_counted(self, counts: BinCounts) -> None:
        """What was counted elsewhere in the same time."""
        self.finished += counts.finished
        self.kept += counts.kept
        self.failed += counts.failed
        self.prompt_tokens += counts.prompt_tokens
        self.cached_tokens += counts.cached_tokens
        self.output_tokens += counts.output_tokens
        _add(self.rejected, counts.rejected)
        self.ttft.add_counted(counts.ttft)
        self.tpot.add_counted(counts.tpot)
        self.itl.add_counted(counts.itl)

    def counts(self) -> BinCounts:
        """As it is now."""
        return BinCounts(
            self.number,
            self.finished,
            self.kept,
            self.failed,
            dict(self.rejected),
            self.prompt_tokens,
            self.cached_tokens,
            self.output_tokens,
            dict(self.ttft.buckets),
            dict(self.tpot.buckets),
            dict(self.itl.buckets),
        )

    def shown(self) -> TimeBin:
        return TimeBin(
            self.number,
            self.finished,
            self.kept,
            self.failed,
            dict(self.rejected),
            self.prompt_tokens,
            self.cached_tokens,
            self.output_tokens,
            self.ttft.percentiles(),
            self.tpot.percentiles(),
            self.itl.percentiles(),
        )


def _add(counts: dict[K, int], more: Mapping[K, int]) -> None:
    for key, count in more.items():
        counts[key] = counts.get(key, 0) + count


class Timeline:
    """The last bins. Those in which nothing happened are left out."""

    def __init__(self, bin_ns: int = BIN_NS, most_bins: int = MOST_BINS) -> None:
        self.bin_ns = bin_ns
        self._most_bins = most_bins
        self._bins: deque[OpenBin] = deque()

    def number_at(self, now_ns: int) -> int:
        return now_ns // self.bin_ns

    def at(self, now_ns: int) -> OpenBin:
        """The bin of this instant. Instants never go back by more than a bin."""
        number = now_ns // self.bin_ns
        if not self._bins or self._bins[-1].number < number:
            self._bins.append(OpenBin(number))
            while self._bins[0].number <= number - self._most_bins:
                self._bins.popleft()
        return self._bins[-1]

    def since(self, number: int, now_ns: int) -> Iterator[OpenBin]:
        """Those of the last minutes from this one on, oldest first."""
        first = max(number, self.number_at(now_ns) - self._most_bins + 1)
        return (each for each in self._bins if each.number >= first)


def added_up(own: Iterable[OpenBin], elsewhere: Iterable[BinCounts]) -> Iterator[TimeBin]:
    """The bins of this gateway and of others: those of the same number are one. Oldest first."""
    bins = {each.number: each for each in own}
    more: dict[int, list[BinCounts]] = {}
    for counts in elsewhere:
        more.setdefault(counts.number, []).append(counts)
    for number in sorted({*bins, *more}):
        if number not in more:
            yield bins[number].shown()
            continue
        whole = OpenBin(number)
        for counts in more[number]:
            whole.add_counted(counts)
        if number in bins:
            whole.add_counted(bins[number].counts())
        yield whole.shown()
