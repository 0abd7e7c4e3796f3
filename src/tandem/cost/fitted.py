"""A fitted step time, linear in a few counts, and the fit from timed steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from math import fsum
from typing import Any

from tandem.cost.model_shape import chunk_pairs
from tandem.cost.worker import StepShape
from tandem.facts.errors import InvalidConfiguration

# Sums of squares come out alike on every machine only up to rounding; six digits hide that.
SIGNIFICANT_DIGITS = 6


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step that was run, and the seconds it took."""

    shape: StepShape
    seconds: float


@dataclass(frozen=True, slots=True)
class FittedStepTime:
    """Seconds = fixed, and so much for each token in the batch, query-key pair of a chunk, decode,
    token that decodes attend to, and sampled row. None may be negative. With `token_s` and
    `fixed_s` alone it is the server of queueing theory, whose waits have closed forms."""

    fixed_s: float = 0.0
    token_s: float = 0.0
    pair_s: float = 0.0
    decode_s: float = 0.0
    context_token_s: float = 0.0
    row_s: float = 0.0
    stages: int = 1

    def seconds(self, shape: StepShape) -> float:
        tokens = shape.tokens
        if not tokens:
            return 0.0
        decodes, context = shape.decode_sequences, shape.decode_context_tokens
        seconds = self._batch_seconds(tokens, decodes, shape.sampled_rows)
        seconds += context * self.context_token_s
        for start, count in shape.chunks:
            seconds += chunk_pairs(start, count) * self.pair_s
        return seconds

    def decode_seconds(self, sequences: int, context_tokens: int) -> float:
        if not sequences:
            return 0.0
        seconds = self._batch_seconds(sequences, sequences, sequences)
        return seconds + context_tokens * self.context_token_s

    def _batch_seconds(self, tokens: int, decodes: int, rows: int) -> float:
        return self.fixed_s + tokens * self.token_s + decodes * self.decode_s + rows * self.row_s


COEFFICIENTS = tuple(part.name for part in fields(FittedStepTime) if part.name != "stages")


def fit(samples: Sequence[TimedStep]) -> FittedStepTime:
    """The non-negative coefficients with the least sum of squared relative errors.

    With six coefficients all 64 choices of which are zero can be tried: the optimum of non-negative
    least squares is the best of the plain solutions that come out non-negative. Raises
    `InvalidConfiguration` without a sample that took time.
    """
    timed = [sample for sample in samples if sample.seconds > 0 and sample.shape.tokens]
    if not timed:
        raise InvalidConfiguration("a profile needs at least one step that took time")
    rows = [[count / s.seconds for count in step_counts(s.shape)] for s in timed]
    return from_coefficients(non_negative_fit(rows, [1.0] * len(rows)))


def from_coefficients(values: Sequence[float]) -> FittedStepTime:
    """In the order of `COEFFICIENTS`, to as many digits as come out alike on every machine."""
    rounded = {name: _rounded(v) for name, v in zip(COEFFICIENTS, values, strict=True) if v}
    return from_fields(rounded, "fit")


def non_negative_fit(rows: Sequence[Sequence[float]], goals: Sequence[float]) -> list[float]:
    """The non-negative x with the least sum of squares of `rows` x - `goals`, 0 for columns that
    are. All choices of which are zero are tried: meant for a handful of columns."""
    # Columns of length 1: pairs count in millions and steps in ones.
    columns = len(rows[0])
    scales = [fsum(row[i] ** 2 for row in rows) ** 0.5 for i in range(columns)]
    used = [i for i, scale in enumerate(scales) if scale]
    gram = {
        (i, j): fsum(row[i] * row[j] for row in rows) / (scales[i] * scales[j])
        for i in used
        for j in used
    }
    goal = {
        i: fsum(row[i] * wanted for row, wanted in zip(rows, goals, strict=True)) / scales[i]
        for i in used
    }
    best_gain, best = 0.0, dict.fromkeys(used, 0.0)
    for chosen in _subsets(used):
        matrix = [[gram[i, j] for j in chosen] for i in chosen]
        solution = solve(matrix, [goal[i] for i in chosen])
        if solution is None or min(solution) < 0:
            continue
        # Squared error = sum of squared goals - gain, at the solution of the normal equations.
        gain = fsum(value * goal[i] for value, i in zip(solution, chosen, strict=True))
        if gain > best_gain:
            best_gain, best = gain, dict(zip(chosen, solution, strict=True))
    return [best.get(i, 0.0) / scales[i] if i in best else 0.0 for i in range(columns)]


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float] | None:
    """Solve a small linear system by elimination with pivots; None where it is singular."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda index: abs(rows[index][column]))
        if abs(rows[pivot][column]) < 1e-11:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for index in range(column + 1, size):
            factor = rows[index][column] / rows[column][column]
            for place in range(column, size + 1):
                rows[index][place] -= factor * rows[column][place]
    solution = [0.0] * size
    for index in reversed(range(size)):
        known = fsum(rows[index][j] * solution[j] for j in range(index + 1, size))
        solution[index] = (rows[index][size] - known) / rows[index][index]
    return solution


def to_fields(model: FittedStepTime) -> dict[str, float]:
    """For JSON."""
    return asdict(model)


def from_fields(values: Mapping[str, object], label: str) -> FittedStepTime:
    """What `to_fields` gave. Raises `InvalidConfiguration` naming the field."""
    known = {part.name for part in fields(FittedStepTime)}
    read: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise InvalidConfiguration(
                f"{label}: unknown field {name!r}; expected {', '.join(sorted(known))}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise InvalidConfiguration(f"{label}: {name} is {value!r}; expected 0 or more")
        read[name] = value
    return FittedStepTime(**read)


def step_counts(shape: StepShape) -> tuple[float, ...]:
    """What each coefficient multiplies, in the order of `COEFFICIENTS`."""
    pairs = sum(chunk_pairs(start, count) for start, count in shape.chunks)
    return (
        1.0,
        float(shape.tokens),
        float(pairs),
        float(shape.decode_sequences),
        float(shape.decode_context_tokens),
        float(shape.sampled_rows),
    )


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(items) + 1):
        yield from combinations(items, size)


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
