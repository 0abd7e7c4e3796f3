"""Step time from tables of measured operators.

The parts of a step and their sum, as in Vidur (MLSys 2024) and AIConfigurator: everything whose
time depends on the batch's tokens, on its sampled rows, on its chunks, on its decodes.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from tandem.cost.curves import Curve, Surface
from tandem.cost.step import StepShape


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
