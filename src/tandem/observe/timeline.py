"""Requests and latencies over the last minutes, in bins of some seconds: what a chart shows.

Durations are counted in buckets whose width is a sixteenth of their power of two, as in HDR
histograms: quantiles are right within 3 %, and a duration costs a shift and an increment.
"""

from collections import deque
from collections.abc import Iterator

from tandem.facts.overview import Percentiles, TimeBin

BIN_NS = 5_000_000_000
# A quarter of an hour.
MOST_BINS = 180
_HALF = 16


class Durations:
    """Counts of durations. Quantiles are the middles of buckets."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}

    def add(self, duration_ns: int, count: int = 1) -> None:
        """So many of this length."""
        shift = max(0, duration_ns.bit_length() - 5)
        bucket = shift * _HALF + (duration_ns >> shift)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count

    def quantile_s(self, share: float) -> float:
        """So that this share of them is no longer. There must be one."""
        left = share * self.count
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                break
        return _middle_ns(bucket) / 1e9

    def percentiles(self) -> Percentiles | None:
        """None where there are none."""
        if not self.count:
            return None
        return Percentiles(
            self.count, self.quantile_s(0.5), self.quantile_s(0.9), self.quantile_s(0.99)
        )


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

    def since(self, number: int, now_ns: int) -> Iterator[TimeBin]:
        """Those of the last minutes from this one on, oldest first."""
        first = max(number, self.number_at(now_ns) - self._most_bins + 1)
        return (each.shown() for each in self._bins if each.number >= first)
