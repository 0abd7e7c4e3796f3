"""The port of proposers: who guesses the next tokens of sequences, for the next step to check.

A wrong guess costs time and changes no answer, so a proposer may be as careless as it likes.
Axes: D rows that draw, C hidden.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.facts.steps import IntArray, Placement
from tandem.facts.token_tree import TokenTree
from tandem.kernels.sampling import NO_TOKEN

# For each row.
Proposals = tuple[TokenTree, ...]


@dataclass(frozen=True, slots=True)
class Continuations:
    """Sequences in `slots` [D] of which the first `ends` tokens are known, the newest `drawn` of
    them in this step; at most `counts` tokens are wanted behind them. `states` [R, C] are the
    model's hidden states, before its final norm, from which this step drew, and `kept` are those
    of them that the known tokens were drawn from: `drawn` of each sequence."""

    slots: IntArray
    ends: IntArray
    counts: IntArray
    drawn: Sequence[int]
    states: Tensor
    kept: Sequence[int]

    @property
    def newest(self) -> NDArray[np.int64]:
        """Which of the hidden states the newest token of each was drawn from [D]."""
        return np.cumsum(self.drawn, dtype=np.int64) - 1

    @property
    def hidden(self) -> Tensor:
        """The hidden states that the known tokens were drawn from [sum of drawn, C]."""
        return self._states(self.kept)

    @property
    def newest_hidden(self) -> Tensor:
        """The hidden states that the newest tokens were drawn from [D, C]."""
        return self._states([self.kept[end - 1] for end in accumulate(self.drawn)])

    def _states(self, rows: Sequence[int]) -> Tensor:
        if len(rows) == 1:
            return self.states[rows[0] : rows[0] + 1]
        return self.states[torch.tensor(rows, device=self.states.device)]


class Proposer(Protocol):
    """Called in the engine's thread, in the order of its steps."""

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """Sequences take slots; what is known of others in these is out of date."""
        ...

    def propose(self, rows: Continuations) -> Proposals:
        """A guess for each row, which may be empty."""
        ...


def chains(guesses: Sequence[Sequence[int]], counts: Sequence[int]) -> Proposals:
    """Of each row the first so many guesses, as far as there are any."""
    return tuple(
        TokenTree(tuple(takewhile(NO_TOKEN.__ne__, row[:count])))
        for row, count in zip(guesses, counts, strict=True)
    )
