"""Builds the plan of one step (`StepPlan`) row by row while the scheduler decides; and fast-forward
of decode steps that only repeat the one in flight, for simulators, with the result of single steps.
"""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Ordered

import numpy as np

from tandem.cluster.worker.sequence import Sequence
from tandem.cluster.worker.step_tally import StepWork, work_of
from tandem.facts.steps import NO_TOKENS, IntArray, Placement, StepPlan
from tandem.facts.token_tree import NO_GUESSES, TokenTree

# After so many blocks nobody else is placed in a step: 64 sequences that share a context of 131k
# tokens take a third of a second otherwise, in which no event is handled.
PLACED_BLOCKS = 4096


class PlanBuilder:
    """Grows a `StepPlan` row by row. `rows` remembers whose row is which: (sequence, end of its
    computed tokens, whether it samples), `draft_counts` how many drafts stand at the end of each
    and `draft_depths` how many of these may be kept at most, `proposals` how many it makes for the
    next step, `scored_counts` how many prompt tokens each row scores, `work` what they compute in
    all, once the plan is built. `short_of_blocks`: blocks ran out on the way; `prompt_tokens`:
    those of rows that have more than one which is no draft."""

    def __init__(self, step_id: int, budget_tokens: int) -> None:
        self.step_id = step_id
        self.launched_ns = 0
        self.work: StepWork
        self.budget_tokens = budget_tokens
        self.short_of_blocks = False
        self.rows: list[tuple[Sequence, int, bool]] = []
        self.draft_counts: list[int] = []
        self.draft_depths: list[int] = []
        self._draft_tokens: list[int] = []
        self._draft_parents: list[int] = []
        self._draft_trees = False
        self.proposals: list[int] = []
        self.scored_counts: list[int] = []
        self.prompt_tokens = 0
        self._placed: list[Sequence] = []
        self._placements: list[Placement] = []
        self._counts: list[int] = []
        self._placed_blocks = 0
        # A row (slot, index in its table, block) for each block that is new in a table.
        self._table_slots: list[int] = []
        self._table_indices: list[int] = []
        self._table_blocks: list[int] = []

    @property
    def may_place(self) -> bool:
        """Whether another sequence may enter its slot in this step."""
        return self._placed_blocks < PLACED_BLOCKS

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return sum(self._counts)

    @property
    def drafted_tokens(self) -> int:
        """The drafts of all rows so far."""
        return len(self._draft_tokens)

    @property
    def longest_proposal(self) -> int:
        """Of the drafts that it is to make for the next step."""
        return max(self.proposals, default=0)

    @property
    def drafts(self) -> bool:
        """Whether what comes next is only known once its tokens are: it checks or makes drafts."""
        return bool(self._draft_tokens) or self.longest_proposal > 0

    def planned_sequences(self) -> set[Sequence]:
        """The sequences that have a row so far."""
        return {sequence for sequence, _, _ in self.rows}

    def place(self, sequence: Sequence) -> None:
        """The sequence enters its slot, with the blocks it has so far."""
        residency = sequence.residency
        residency.placed = True
        self._placed.append(sequence)
        self._placements.append(
            Placement(
                residency.slot,
                sequence.request.request_id,
                sequence.tokens[:],
                len(sequence.request.prompt_tokens),
                sequence.request.sampling,
                sequence.request.adapter,
            )
        )
        blocks = len(residency.blocks)
        self._table_slots += [residency.slot] * blocks
        self._table_indices += range(blocks)
        self._table_blocks += residency.blocks
        self._placed_blocks += blocks

    def add_block(self, sequence: Sequence, block: int) -> None:
        residency = sequence.residency
        self._table_slots.append(residency.slot)
        self._table_indices.append(len(residency.blocks))
        self._table_blocks.append(block)
        residency.blocks.append(block)

    def add_row(
        self,
        sequence: Sequence,
        chunk_tokens: int,
        drafts: TokenTree = NO_GUESSES,
        proposed_tokens: int = 0,
    ) -> None:
        """Schedule the next `chunk_tokens` of a running sequence, whose blocks are there; behind
        them `drafts`, if they end where it draws. Then so many tokens are wanted as the next."""
        residency = sequence.residency
        first = residency.scheduled
        residency.scheduled += chunk_tokens
        self.scored_counts.append(sequence.scored_tokens(first, residency.scheduled))
        sequence.steps_in_flight += 1
        draws = sequence.draws_next
        drafted = 0
        if draws:
            sequence.unseen += 1
            # A guess at what is drawn now is out of date for the step after.
            sequence.proposal = NO_GUESSES
            drafted = len(drafts)
            self._draft_tokens += drafts.tokens
            self._draft_parents += drafts.parents or range(-1, drafted - 1)
            self._draft_trees = self._draft_trees or bool(drafts.parents)
        residency.scheduled += drafted
        self._counts.append(chunk_tokens + drafted)
        self.budget_tokens -= chunk_tokens + drafted
        self.draft_counts.append(drafted)
        self.draft_depths.append(drafts.depth if drafted else 0)
        self.prompt_tokens += chunk_tokens if chunk_tokens > 1 else 0
        self.proposals.append(proposed_tokens if draws else 0)
        self.rows.append((sequence, residency.scheduled, draws))

    def add_decodes(self, sequences: list[Sequence]) -> None:
        """As `add_row` of each with its one pending token and without drafts: most rows of most
        steps are that, and many at a time take half as long."""
        for sequence in sequences:
            residency = sequence.residency
            residency.scheduled += 1
            sequence.steps_in_flight += 1
            sequence.unseen += 1
            self.rows.append((sequence, residency.scheduled, True))
        count = len(sequences)
        none = [0] * count
        self._counts += [1] * count
        self.scored_counts += none
        self.draft_counts += none
        self.draft_depths += none
        self.proposals += none
        self.budget_tokens -= count

    def build(self, now_ns: int) -> StepPlan:
        """The plan, which is launched now."""
        rows, counts = self.rows, self._counts
        starts = [end - count for (_, end, _), count in zip(rows, counts, strict=True)]
        samples = [draws for _, _, draws in rows]
        drafts, scored_tokens = len(self._draft_tokens), sum(self.scored_counts)
        sampled_rows = sum(samples) + drafts + scored_tokens
        self.launched_ns, self.work = now_ns, work_of(starts, counts, sampled_rows, drafts)
        for sequence in self._placed:
            sequence.step_launched(now_ns)
        return StepPlan(
            step_id=self.step_id,
            placements=tuple(self._placements),
            slots=np.array([sequence.residency.slot for sequence, _, _ in rows], np.int32),
            starts=np.array(starts, np.int32),
            counts=np.array(counts, np.int32),
            samples=np.array(samples, np.bool_),
            table_slots=_numbers(self._table_slots),
            table_indices=_numbers(self._table_indices),
            table_blocks=_numbers(self._table_blocks),
            draft_counts=_numbers(self.draft_counts if drafts else []),
            draft_tokens=_numbers(self._draft_tokens),
            draft_parents=_numbers(self._draft_parents if self._draft_trees else []),
            proposals=_numbers(self.proposals if self.longest_proposal else []),
            scored_counts=_numbers(self.scored_counts if scored_tokens else []),
        )


def _numbers(numbers: list[int]) -> IntArray:
    return np.array(numbers, np.int32) if numbers else NO_TOKENS


def repeating_steps(
    in_flight: Ordered[PlanBuilder], running: list[Sequence], block_size: int, caching: bool
) -> int:
    """How often every running sequence decodes once more, in the same order, before one of them has
    drawn all its tokens, takes a block or (where `caching`) fills one. A first token, with which a
    wait is told, is drawn but once."""
    for step in in_flight:
        if [sequence for sequence, _, _ in step.rows] != running:
            return 0
        if not all(draws for _, _, draws in step.rows):
            return 0
    if any(end != sequence.residency.confirmed + 1 for sequence, end, _ in in_flight[0].rows):
        return 0
    return min(_repeating_steps_of(sequence, block_size, caching) for sequence in running)


def _repeating_steps_of(sequence: Sequence, block_size: int, caching: bool) -> int:
    if sequence.waited_ns:
        return 0
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
        step.work.context_tokens += steps * step.work.decodes
        step.rows = [(sequence, end + steps, draws) for sequence, end, draws in step.rows]
