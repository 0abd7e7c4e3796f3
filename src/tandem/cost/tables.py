"""Step time from tables of measured operators, and interpolation between their points.

The parts of a step and their sum, as in Vidur (MLSys 2024) and AIConfigurator: everything whose
time depends on the batch's tokens, on its sampled rows, on its chunks, on its decodes.

Straight lines between knots: step times are sums of parts that are constant or linear in their
argument (launch, streaming, arithmetic), so lines are exact within a regime, and sums of curves
stay curves; in log-log they would not. Where more work was measured to take less time, the less
takes that time too: disturbances and unlucky tiles only add. Beyond the last knot the slope of the
last doubling goes on: single segments are noisy.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import fsum

from tandem.cost.worker import StepShape


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


@dataclass(frozen=True, slots=True)
class TableStepTime:
    """Seconds of one stage: `tokens` by tokens in the batch, `rows` by sampled rows, `chunks` by
    (tokens now, tokens before), `decodes` by (sequences, tokens attended to by all).

    Where a step has chunks and decodes, one kernel serves both, and not with the tiles that decodes
    would have alone: that adds `company`, by (sequences, tokens attended to), and `tile_s` for each
    decode and token of the longest chunk, up to which every sequence gets its tiles.
    """

    stages: int
    tokens: Curve
    rows: Curve
    chunks: Surface
    decodes: Surface
    company: Surface | None = None
    tile_s: float = 0.0
    _decode_memo: dict[int, tuple[float, Curve]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _chunk_memo: dict[int, Curve] = field(default_factory=dict, repr=False, compare=False)
    _company_memo: dict[int, Curve] = field(default_factory=dict, repr=False, compare=False)

    def seconds(self, shape: StepShape) -> float:
        tokens, sequences = shape.tokens, shape.decode_sequences
        if not tokens:
            return 0.0
        seconds = self.tokens.at(tokens)
        if shape.sampled_rows:
            seconds += self.rows.at(shape.sampled_rows)
        if sequences:
            seconds += self._decode_parts(sequences)[1].at(shape.decode_context_tokens)
            if shape.chunks:
                seconds += self._company_seconds(shape)
        for start, count in shape.chunks:
            seconds += self._chunk_seconds(start, count)
        return seconds

    def decode_seconds(self, sequences: int, context_tokens: int) -> float:
        if not sequences:
            return 0.0
        parts = self._decode_memo.get(sequences)
        base_s, curve = parts or self._decode_parts(sequences)
        # `curve.at`, written out: this is asked once for every simulated step.
        xs, ys = curve.xs, curve.ys
        right = bisect_right(xs, context_tokens)
        if right == len(xs):
            return base_s + (ys[-1] + (context_tokens - xs[-1]) * curve.slope_after)
        if not right:
            return base_s + ys[0]
        share = (context_tokens - xs[right - 1]) / (xs[right] - xs[right - 1])
        return base_s + (ys[right - 1] + (ys[right] - ys[right - 1]) * share)

    def _decode_parts(self, sequences: int) -> tuple[float, Curve]:
        """Seconds that do not depend on the context, and the attention by context."""
        parts = self._decode_memo.get(sequences)
        if parts is None:
            base_s = self.tokens.at(sequences) + self.rows.at(sequences)
            parts = self._decode_memo[sequences] = (base_s, self.decodes.cut(sequences))
        return parts

    def _company_seconds(self, shape: StepShape) -> float:
        """What decodes take longer because there are chunks beside them."""
        sequences = shape.decode_sequences
        seconds = sequences * max(count for _, count in shape.chunks) * self.tile_s
        if self.company is None:
            return seconds
        cut = self._company_memo.get(sequences)
        if cut is None:
            cut = self._company_memo[sequences] = self.company.cut(sequences)
        return seconds + cut.at(shape.decode_context_tokens)

    def _chunk_seconds(self, start: int, count: int) -> float:
        """A chunk longer than any that was measured is several: attention grows with its square,
        which no straight line would tell."""
        longest, seconds = self.chunks.last_count, 0.0
        while count:
            part = min(count, longest)
            cut = self._chunk_memo.get(part)
            if cut is None:
                cut = self._chunk_memo[part] = self.chunks.cut(part)
            seconds += cut.at(start)
            start, count = start + part, count - part
        return seconds
