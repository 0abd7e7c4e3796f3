"""Medusa heads as proposer: from the hidden state that a token was drawn from, a head each guesses
one of the tokens behind it (Cai et al., Medusa: Simple LLM Inference Acceleration Framework with
Multiple Decoding Heads, 2024).

Axes: D rows, C hidden, V vocabulary.
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
        counts = np.minimum(rows.counts, len(self._heads.weights))
        newest_D = torch.from_numpy(rows.newest).to(rows.hidden.device)
        normed_DC = self._decoder.normed(rows.hidden[newest_D])
        columns = []
        for head in range(counts.max(initial=0)):
            logits_DV = self._decoder.head_logits(self._heads.state(head, normed_DC))
            draws = self._slots.sampling_rows(rows.slots, rows.ends + head)
            columns.append(self._decoder.kernels.sample(logits_DV, draws).tolist())
        guesses = zip(*columns, strict=True) if columns else ((),) * len(counts)
        return tuple(
            tuple(guess[:count]) for guess, count in zip(guesses, counts.tolist(), strict=True)
        )
