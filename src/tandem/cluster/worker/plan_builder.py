"""Builds the plan of one step (`StepPlan`) row by row while the scheduler decides; and fast-forward
of decode steps that only repeat the one in flight, for simulators, with the result of single steps.
"""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Ordered

import numpy as np
from numpy.typing import NDArray

from tandem.cluster.worker.sequence import Sequence
from tandem.facts.steps import Placement, StepPlan

BlockNumbers = NDArray[np.int32]


# After so many blocks nobody else is placed in a step: 64 sequences that share a context of 131k
# tokens take a third of a second otherwise, in which no event is handled.
PLACED_BLOCKS = 4096

# What most steps add to block tables.
_NO_ROWS: BlockNumbers = np.empty((0, 3), np.int32)


class PlanBuilder:
    """Grows a `StepPlan` row by row. `rows` remembers whose row is which: (sequence, end of its
    computed tokens, whether it samples). `short_of_blocks`: blocks ran out on the way."""

    def __init__(self, step_id: int, budget_tokens: int) -> None:
        self.step_id = step_id
        self.budget_tokens = budget_tokens
        self.short_of_blocks = False
        self.rows: list[tuple[Sequence, int, bool]] = []
        self.planned: set[Sequence] = set()
        self._placements: list[Placement] = []
        self._slots: list[int] = []
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._samples: list[bool] = []
        self._table: list[tuple[int, int, int]] = []
        # The slot of each placement, and its blocks at that time.
        self._placed: list[tuple[int, BlockNumbers]] = []
        self._placed_blocks = 0

    @property
    def may_place(self) -> bool:
        """Whether another sequence may enter its slot in this step."""
        return self._placed_blocks < PLACED_BLOCKS

    def place(self, sequence: Sequence) -> None:
        """The sequence enters its slot, with the blocks it has so far."""
        sequence.residency.placed = True
        self._placements.append(
            Placement(
                sequence.residency.slot,
                sequence.request.request_id,
                sequence.tokens[:],
                len(sequence.request.prompt_tokens),
                sequence.request.sampling,
            )
        )
        self._placed.append(
            (sequence.residency.slot, np.array(sequence.residency.blocks, np.int32))
        )
        self._placed_blocks += len(sequence.residency.blocks)

    def add_block(self, sequence: Sequence, block: int) -> None:
        self._table.append((sequence.residency.slot, len(sequence.residency.blocks), block))
        sequence.residency.blocks.append(block)

    def add_row(self, sequence: Sequence, chunk_tokens: int) -> None:
        """Schedule the next `chunk_tokens` of a running sequence, whose blocks are there."""
        self._slots.append(sequence.residency.slot)
        self._starts.append(sequence.residency.scheduled)
        self._counts.append(chunk_tokens)
        self.budget_tokens -= chunk_tokens
        sequence.residency.scheduled += chunk_tokens
        sequence.steps_in_flight += 1
        draws = sequence.draws_next
        if draws:
            sequence.unseen += 1
        self._samples.append(draws)
        self.rows.append((sequence, sequence.residency.scheduled, draws))
        self.planned.add(sequence)

    def build(self) -> StepPlan:
        table = self._table_rows()
        return StepPlan(
            step_id=self.step_id,
            placements=tuple(self._placements),
            slots=np.array(self._slots, np.int32),
            starts=np.array(self._starts, np.int32),
            counts=np.array(self._counts, np.int32),
            samples=np.array(self._samples, np.bool_),
            table_slots=table[:, 0],
            table_indices=table[:, 1],
            table_blocks=table[:, 2],
        )

    def _table_rows(self) -> BlockNumbers:
        """A row (slot, index in its table, block) for each block that is new in a table."""
        if not self._table and not self._placed:
            return _NO_ROWS
        added = np.array(self._table, np.int32).reshape(-1, 3)
        if not self._placed:
            return added
        tables = [np.empty((len(blocks), 3), np.int32) for _, blocks in self._placed]
        for table, (slot, blocks) in zip(tables, self._placed, strict=True):
            table[:, 0], table[:, 1], table[:, 2] = slot, np.arange(len(blocks)), blocks
        return np.concatenate((*tables, added))


def repeating_steps(
    in_flight: Ordered[PlanBuilder], running: list[Sequence], block_size: int, caching: bool
) -> int:
    """How often every running sequence decodes once more, in the same order, before one of them has
    drawn all its tokens, takes a block or (where `caching`) fills one."""
    for step in in_flight:
        if [sequence for sequence, _, _ in step.rows] != running:
            return 0
        if not all(draws for _, _, draws in step.rows):
            return 0
    if any(end != sequence.residency.confirmed + 1 for sequence, end, _ in in_flight[0].rows):
        return 0
    return min(_repeating_steps_of(sequence, block_size, caching) for sequence in running)


def _repeating_steps_of(sequence: Sequence, block_size: int, caching: bool) -> int:
    steps = min(
        sequence.target_tokens - sequence.known_tokens - sequence.unseen,
        len(sequence.residency.blocks) * block_size - sequence.residency.scheduled,
    )
    if caching:
        steps = min(
            steps,
            (sequence.residency.committed + 1) * block_size - 1 - sequence.residency.confirmed,
        )
    return steps


def repeat(in_flight: Ordered[PlanBuilder], steps: int, tokens: Iterable[int]) -> None:
    """The rows of all in_flight move on by `steps` tokens; row i draws `tokens[i]` each time."""
    for (sequence, _, _), token in zip(in_flight[0].rows, tokens, strict=True):
        sequence.extend(array("I", (token,)) * steps)
        sequence.residency.scheduled += steps
        sequence.residency.confirmed += steps
    for step in in_flight:
        step.step_id += steps
        step.rows = [(sequence, end + steps, draws) for sequence, end, draws in step.rows]
