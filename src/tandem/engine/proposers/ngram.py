"""Proposes what followed the last time that the sequence said the same (prompt look-up decoding,
Saxena 2023): no model, and right wherever an answer repeats its prompt or itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.engine.proposers.contract import Continuations, Proposals
from tandem.engine.slots import Slots
from tandem.facts.steps import Placement
from tandem.facts.token_tree import TokenTree

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class NgramSizes:
    """Of the ends that are looked for: the longest first, and none shorter than `least`."""

    least: int = 2
    most: int = 4


class NgramProposer:
    """Looks in the tokens of each sequence; remembers nothing."""

    def __init__(self, slots: Slots, sizes: NgramSizes) -> None:
        assert 1 <= sizes.least <= sizes.most
        self._slots = slots
        self._sizes = sizes

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """Nothing is remembered."""

    def propose(self, rows: Continuations) -> Proposals:
        """See the port."""
        found = []
        for slot, end, count in zip(rows.slots, rows.ends, rows.counts, strict=True):
            tokens = self._slots.tokens[slot, :end].cpu().numpy() if count else _NONE
            found.append(TokenTree(continuation(tokens, int(count), self._sizes)))
        return tuple(found)


_NONE: Tokens = np.empty(0, np.int32)


def continuation(tokens: Tokens, count: int, sizes: NgramSizes) -> tuple[int, ...]:
    """At most `count` tokens that came behind the newest earlier place where the longest end of
    `tokens` stands, too; what reaches the end of them goes on as a repetition."""
    if not count or len(tokens) <= sizes.least:
        return ()
    # Where the last token stands, then of those where the two last stand, and so on.
    places = np.flatnonzero(tokens[:-1] == tokens[-1])
    best = places[:0]
    for size in range(1, min(sizes.most, len(tokens) - 1) + 1):
        if size > 1:
            places = places[places >= size - 1]
            places = places[tokens[places - (size - 1)] == tokens[-size]]
        if not len(places):
            break
        if size >= sizes.least:
            best = places
    if not len(best):
        return ()
    follows = int(best[-1]) + 1
    period = len(tokens) - follows
    return tuple(int(tokens[follows + place % period]) for place in range(count))
