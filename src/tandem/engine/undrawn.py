"""Which slots wait for tokens that another stage draws, and at which positions.

A slot may have been given to another sequence before its token comes; then the token is of no use.
"""

import numpy as np
from numpy.typing import NDArray

from tandem.facts.steps import IntArray, StepPlan

TokenArray = NDArray[np.int64]


class UndrawnSteps:
    """The steps that were launched here and are drawn elsewhere, until their tokens come."""

    def __init__(self) -> None:
        self._rows_of: dict[int, tuple[IntArray, IntArray]] = {}

    def follow(self, plan: StepPlan, row_slots: IntArray, positions: IntArray) -> None:
        """A launched plan: its sampling rows wait from now on, and the rows of sequences whose
        slots it gives to others wait no longer."""
        replaced = [placement.slot for placement in plan.placements]
        if replaced:
            for slots, _ in self._rows_of.values():
                slots[np.isin(slots, replaced)] = -1
        if len(row_slots):
            self._rows_of[plan.step_id] = (row_slots.copy(), positions)

    def take(self, step_id: int, tokens: TokenArray) -> tuple[IntArray, IntArray, TokenArray]:
        """(slots, positions, tokens) of the rows that still wait for this step's tokens."""
        nobody = np.empty(0, np.int32)
        slots, positions = self._rows_of.pop(step_id, (nobody, nobody))
        assert len(slots) == len(tokens)
        waiting = slots >= 0
        return slots[waiting], positions[waiting], tokens[waiting]
