"""Arithmetic with written steps: right often, not always, so that voting over samples gains.

Sums, differences and small products. The reply writes one step a line and ends in "Answer: N".
"""

from dataclasses import dataclass
from random import Random

from tandem.bench.tasks.task import Task, is_held_out

PHRASINGS: tuple[str, ...] = (
    "What is {problem}?",
    "Calculate {problem}.",
    "Please work out {problem}.",
    "How much is {problem}?",
    "{problem} = ?",
    "Can you compute {problem}?",
)

# Shares of the evaluation: (operation, digits of the operands, weight). Chosen so that a single
# greedy reply of the bundled model is right in most cases but not in all.
MIX: tuple[tuple[str, int, int, float], ...] = (
    ("+", 2, 2, 1.0),
    ("+", 3, 3, 1.5),
    ("+", 4, 4, 1.5),
    ("-", 2, 2, 1.0),
    ("-", 3, 3, 1.5),
    ("-", 4, 4, 1.5),
    ("*", 2, 1, 1.0),
    ("*", 2, 2, 2.0),
)


@dataclass(frozen=True)
class Problem:
    """Two operands and a sign."""

    left: int
    sign: str
    right: int

    @property
    def text(self) -> str:
        return f"{self.left} {self.sign} {self.right}"

    @property
    def result(self) -> int:
        if self.sign == "+":
            return self.left + self.right
        return self.left - self.right if self.sign == "-" else self.left * self.right

    @property
    def held_out(self) -> bool:
        return is_held_out(f"arithmetic {self.text}")


def arithmetic(rng: Random, *, held_out: bool = True) -> Task:
    """A task from the held-out problems, or from those used in training."""
    problem = draw_problem(rng, held_out=held_out)
    content = rng.choice(PHRASINGS).format(problem=problem.text)
    return Task(
        kind="arithmetic",
        messages=({"role": "user", "content": content},),
        answer=str(problem.result),
        reference={"role": "assistant", "content": steps(problem)},
    )


def draw_problem(rng: Random, *, held_out: bool) -> Problem:
    """A problem by the shares of `MIX`; a difference is never negative."""
    weights = [row[3] for row in MIX]
    while True:
        sign, left_digits, right_digits, _ = rng.choices(MIX, weights)[0]
        left, right = _draw_operand(rng, left_digits), _draw_operand(rng, right_digits)
        if sign == "-" and left < right:
            left, right = right, left
        problem = Problem(left, sign, right)
        if problem.held_out == held_out:
            return problem


def steps(problem: Problem) -> str:
    """The written reply: the steps, then the answer on its own line."""
    write = {"+": _sum_steps, "-": _difference_steps, "*": _product_steps}[problem.sign]
    lines = [*write(problem.left, problem.right), f"Answer: {problem.result}"]
    return "\n".join(lines)


def _draw_operand(rng: Random, digits: int) -> int:
    return rng.randrange(2 if digits == 1 else 10 ** (digits - 1), 10**digits)


def _columns(left: int, right: int) -> list[tuple[int, int]]:
    """Digit pairs from the ones upwards."""
    pairs = []
    while left or right:
        pairs.append((left % 10, right % 10))
        left, right = left // 10, right // 10
    return pairs


def _sum_steps(left: int, right: int) -> list[str]:
    lines, carry = [], 0
    for a, b in _columns(left, right):
        total = a + b + carry
        carried = f" + {carry}" if carry else ""
        carry = total // 10
        note = f", write {total % 10}, carry {carry}" if carry else f", write {total % 10}"
        lines.append(f"{a} + {b}{carried} = {total}{note}")
    return lines


def _difference_steps(left: int, right: int) -> list[str]:
    lines, borrow = [], 0
    for a, b in _columns(left, right):
        borrowed = f" - {borrow}" if borrow else ""
        rest = a - b - borrow
        if rest < 0:
            lines.append(f"{a} - {b}{borrowed}: borrow 1, {a + 10} - {b}{borrowed} = {rest + 10}")
            borrow = 1
        else:
            lines.append(f"{a} - {b}{borrowed} = {rest}")
            borrow = 0
    return lines


def _product_steps(left: int, right: int) -> list[str]:
    parts = [(digit * 10**place) for place, digit in enumerate(map(int, reversed(str(right))))]
    parts = [part for part in parts if part]
    lines = []
    for part in parts:
        tens, ones = left // 10 * 10, left % 10
        lines.append(f"{tens} * {part} = {tens * part}")
        lines.append(f"{ones} * {part} = {ones * part}")
        lines.append(f"{tens * part} + {ones * part} = {left * part}")
    if len(parts) == 2:
        first, second = left * parts[0], left * parts[1]
        lines.append(f"{first} + {second} = {first + second}")
    return lines
