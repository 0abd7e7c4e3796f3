"""Proposes what followed the last time that the sequence said the same (prompt look-up decoding,
Saxena 2023): no model, and right wherever an answer repeats its prompt or itself.

Axes: D rows that draw, H guesses behind each other.
"""

from collections.abc import Iterable

import torch

from tandem.engine.proposers.contract import Continuations, Proposals, chains
from tandem.engine.slots import Slots
from tandem.facts.steps import Placement
from tandem.kernels.faces import Kernels
from tandem.kernels.prompt_lookup import KnownTokens, NgramSizes
from tandem.kernels.sampling import NO_TOKEN


class NgramProposer:
    """Looks in the tokens of each sequence; remembers nothing."""

    def __init__(self, kernels: Kernels, slots: Slots, sizes: NgramSizes) -> None:
        self._kernels = kernels
        self._slots = slots
        self._sizes = sizes

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """Nothing is remembered."""

    def propose(self, rows: Continuations) -> Proposals:
        """See the port."""
        counts_D = torch.from_numpy(rows.counts)
        longest = int(counts_D.max()) if len(counts_D) else 0
        guesses_DH = torch.full((len(counts_D), longest), NO_TOKEN)
        # Behind a guess that is neither there nor wanted nothing is looked up.
        wanted_DH = torch.arange(longest) < counts_D[:, None]
        known = known_tokens(self._slots, rows)
        self._kernels.look_up_prompt(known, self._sizes, guesses_DH, wanted_DH)
        return chains(guesses_DH.tolist(), rows.counts.tolist())


def known_tokens(slots: Slots, rows: Continuations) -> KnownTokens:
    """What there is to look in."""
    return KnownTokens(slots.tokens, torch.from_numpy(rows.slots), torch.from_numpy(rows.ends))
