"""Interpolation between measured points of seconds.

Straight lines between knots: step times are sums of parts that are constant or linear in their
argument (launch, streaming, arithmetic), so lines are exact within a regime, and sums of curves
stay curves; in log-log they would not. Where more work was measured to take less time, the less
takes that time too: disturbances and unlucky tiles only add. Beyond the last knot the slope of the
last doubling goes on: single segments are noisy.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds `ys` at the ascending knots `xs`; constant before the first, and rising by
    `slope_after` behind the last. Never falls if made by the functions here."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    slope_after: float

    def at(self, x: float) -> float:
        xs, ys = self.xs, self.ys
        right = bisect_right(xs, x)
        if right == len(xs):
            return ys[-1] + (x - xs[-1]) * self.slope_after
        if not right:
            return ys[0]
        share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
        return ys[right - 1] + (ys[right] - ys[right - 1]) * share

    def scaled(self, factor: float) -> "Curve":
        return Curve(self.xs, tuple(y * factor for y in self.ys), self.slope_after * factor)


def curve(points: Iterable[tuple[float, float]]) -> Curve:
    """Through (x, seconds) points in any order; of several at one x the smallest counts."""
    least: dict[float, float] = {}
    for x, seconds in points:
        least[x] = min(seconds, least.get(x, seconds))
    assert least, "a curve needs a point"
    xs = tuple(sorted(least))
    ys = tuple(accumulate((least[x] for x in reversed(xs)), min))[::-1]
    middle = min(bisect_right(xs, xs[-1] / 2), len(xs) - 1)
    start = max(0, middle - 1)
    run = xs[-1] - xs[start]
    return Curve(xs, ys, (ys[-1] - ys[start]) / run if run else 0.0)


def constant(seconds: float) -> Curve:
    return Curve((0.0,), (seconds,), 0.0)


def total(curves: Sequence[Curve]) -> Curve:
    """The sum of curves."""
    xs = _knots(curves)
    ys = tuple(fsum(part.at(x) for part in curves) for x in xs)
    return Curve(xs, ys, fsum(part.slope_after for part in curves))


def lower(one: Curve, other: Curve) -> Curve:
    """A curve nowhere above either: between common knots it may lie below both, where they
    cross."""
    xs = _knots((one, other))
    ys = tuple(min(one.at(x), other.at(x)) for x in xs)
    return Curve(xs, ys, min(one.slope_after, other.slope_after))


def blend(one: Curve, other: Curve, share: float) -> Curve:
    """`share` 0 is `one`, 1 is `other`."""
    if share == 0.0:
        return one
    xs = _knots((one, other))
    ys = tuple(a + (b - a) * share for a, b in ((one.at(x), other.at(x)) for x in xs))
    return Curve(xs, ys, one.slope_after + (other.slope_after - one.slope_after) * share)


def _knots(curves: Sequence[Curve]) -> tuple[float, ...]:
    return tuple(sorted({x for part in curves for x in part.xs}))


@dataclass(frozen=True, slots=True)
class Surface:
    """Seconds by a count and a length: one curve over the length for each count measured, none
    above the one after it. Each count above the last adds `after_s`."""

    counts: tuple[float, ...]
    curves: tuple[Curve, ...]
    after_s: float

    @property
    def last_count(self) -> int:
        return int(self.counts[-1])

    def cut(self, count: float) -> Curve:
        """The curve of one count."""
        right = bisect_right(self.counts, count)
        if right == len(self.counts):
            more = constant((count - self.counts[-1]) * self.after_s)
            return total((self.curves[-1], more)) if count > self.counts[-1] else self.curves[-1]
        if not right:
            return self.curves[0]
        low, high = self.counts[right - 1], self.counts[right]
        return blend(self.curves[right - 1], self.curves[right], (count - low) / (high - low))

    def scaled(self, factor: float) -> "Surface":
        curves = tuple(part.scaled(factor) for part in self.curves)
        return Surface(self.counts, curves, self.after_s * factor)


def surface(samples: Mapping[tuple[float, float], float]) -> Surface:
    """From seconds by (count, length)."""
    by_count: dict[float, list[tuple[float, float]]] = {}
    for (count, length), seconds in samples.items():
        by_count.setdefault(count, []).append((length, seconds))
    counts = tuple(sorted(by_count))
    falling = (curve(by_count[count]) for count in reversed(counts))
    curves = tuple(accumulate(falling, lower))[::-1]
    after_s = 0.0
    if len(counts) > 1:
        last, before = curves[-1], curves[-2]
        after_s = (last.ys[0] - before.at(last.xs[0])) / (counts[-1] - counts[-2])
    return Surface(counts, curves, after_s)
