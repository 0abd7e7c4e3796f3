"""Medusa heads as proposer: from the hidden state that a token was drawn from, a head each guesses
one of the tokens behind it (Cai et al., Medusa: Simple LLM Inference Acceleration Framework with
Multiple Decoding Heads, 2024).

Axes: D rows that draw, R of these times heads, C hidden, V vocabulary.
"""

from collections.abc import Iterable

import numpy as np
import torch

from tandem.engine.proposers.contract import Continuations, Proposals
from tandem.engine.slots import Slots
from tandem.facts.steps import Placement
from tandem.models.decoder import Decoder
from tandem.models.medusa import MedusaHeads


class MedusaProposer:
    """A guess is drawn as the token itself will be, with its parameters and its noise: so the two
    are equal as often as the distributions overlap."""

    def __init__(self, decoder: Decoder, slots: Slots, heads: MedusaHeads) -> None:
        self._decoder = decoder
        self._slots = slots
        self._heads = heads

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """Nothing is remembered."""

    def propose(self, rows: Continuations) -> Proposals:
        """See the port. As many tokens as there are heads at most."""
        counts = np.minimum(rows.counts, self._heads.count)
        heads = int(counts.max(initial=0))
        if not heads:
            return ((),) * len(counts)
        newest_D = torch.from_numpy(rows.newest).to(rows.hidden.device)
        normed_DC = self._decoder.normed(rows.hidden[newest_D])
        # All heads at once: a row for each sequence and head.
        logits_RV = self._decoder.head_logits(self._heads.states(normed_DC, heads))
        places = np.tile(np.arange(heads, dtype=np.int32), len(counts))
        draws = self._slots.sampling_rows(
            np.repeat(rows.slots, heads), np.repeat(rows.ends, heads) + places
        )
        tokens = self._decoder.kernels.sample(logits_RV, draws).tolist()
        return tuple(
            tuple(tokens[row * heads : row * heads + count])
            for row, count in enumerate(counts.tolist())
        )
