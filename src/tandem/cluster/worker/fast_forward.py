"""Fast-forward of decode steps that only repeat the one in flight: for simulators. The result is
that of single steps."""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Ordered

from tandem.cluster.worker.plan_builder import PlanBuilder
from tandem.cluster.worker.sequence import Sequence


def repeating_steps(
    flights: Ordered[PlanBuilder], running: list[Sequence], block_size: int, sealing: bool
) -> int:
    """How often every running sequence decodes once more, in the same order, before one of them
    has drawn all its tokens, takes a block or (where `sealing`) fills one."""
    for flight in flights:
        if [sequence for sequence, _, _ in flight.rows] != running:
            return 0
        if not all(draws for _, _, draws in flight.rows):
            return 0
    if any(end != sequence.residency.confirmed + 1 for sequence, end, _ in flights[0].rows):
        return 0
    return min(_repeating_steps_of(sequence, block_size, sealing) for sequence in running)


def _repeating_steps_of(sequence: Sequence, block_size: int, sealing: bool) -> int:
    steps = min(
        sequence.target_tokens - sequence.known_tokens - sequence.unseen,
        len(sequence.residency.blocks) * block_size - sequence.residency.scheduled,
    )
    if sealing:
        steps = min(
            steps,
            (sequence.residency.committed + 1) * block_size - 1 - sequence.residency.confirmed,
        )
    return steps


def repeat(flights: Ordered[PlanBuilder], steps: int, tokens: Iterable[int]) -> None:
    """The rows of all flights move on by `steps` tokens; row i draws `tokens[i]` each time."""
    for (sequence, _, _), token in zip(flights[0].rows, tokens, strict=True):
        sequence.extend(array("I", (token,)) * steps)
        sequence.residency.scheduled += steps
        sequence.residency.confirmed += steps
    for flight in flights:
        flight.step_id += steps
        flight.rows = [(sequence, end + steps, draws) for sequence, end, draws in flight.rows]
