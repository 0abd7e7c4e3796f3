"""Medusa heads as proposer: from the hidden state that a token was drawn from, a head each guesses
one of the tokens behind it (Cai et al., Medusa: Simple LLM Inference Acceleration Framework with
Multiple Decoding Heads, 2024).

Axes: D rows that draw, R of these times heads, C hidden, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from tandem.engine.proposers.contract import Continuations, Proposals
from tandem.engine.proposers.growing_tree import ROOT, GrowingTree, candidate_shares
from tandem.engine.slots import Slots
from tandem.facts.steps import Placement
from tandem.facts.token_tree import NO_GUESSES, TokenTree
from tandem.kernels.sampling import DraftCandidates
from tandem.models.decoder import Decoder
from tandem.models.medusa import MedusaHeads


class MedusaProposer:
    """A guess is drawn as the token itself will be, with its parameters and its noise: so the two
    are equal as often as the distributions overlap. Of each head `branches` tokens are drawn."""

    def __init__(
        self, decoder: Decoder, slots: Slots, heads: MedusaHeads, branches: int = 1
    ) -> None:
        self._branches = branches
        self._decoder = decoder
        self._slots = slots
        self._heads = heads

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """Nothing is remembered."""

    def propose(self, rows: Continuations) -> Proposals:
        """See the port. As many tokens behind each other as there are heads at most."""
        counts = rows.counts
        heads = min(int(counts.max(initial=0)), self._heads.count)
        if not heads:
            return (NO_GUESSES,) * len(counts)
        newest_D = torch.from_numpy(rows.newest).to(rows.hidden.device)
        normed_DC = self._decoder.normed(rows.hidden[newest_D])
        # All heads at once: a row for each sequence and head.
        logits_RV = self._decoder.head_logits(self._heads.states(normed_DC, heads))
        places = np.tile(np.arange(heads, dtype=np.int32), len(counts))
        draws = self._slots.sampling_rows(
            np.repeat(rows.slots, heads), np.repeat(rows.ends, heads) + places
        )
        kernels = self._decoder.kernels
        if self._branches > 1:
            candidates = kernels.sample_candidates(logits_RV, draws, self._branches)
            return tuple(grown_trees(counts.tolist(), heads, candidates))
        tokens = kernels.sample(logits_RV, draws).tolist()
        return tuple(
            TokenTree(tuple(tokens[row * heads : row * heads + min(count, heads)]))
            for row, count in enumerate(counts.tolist())
        )


def grown_trees(
    counts: Sequence[int], heads: int, candidates: DraftCandidates
) -> Iterator[TokenTree]:
    """Of each row the likeliest so many guesses: what a head says may come behind all that the head
    before it says."""
    tokens, shares = candidate_shares(candidates)
    for row, count in enumerate(counts):
        growing, first = GrowingTree(count), row * heads
        if count:
            growing.grow(ROOT, tokens[first], shares[first])
        while numbers := growing.worth_growing(count):
            for number in numbers:
                head = growing.depths[number]
                if head < heads:
                    growing.grow(number, tokens[first + head], shares[first + head])
                else:
                    growing.grow(number, (), ())
        yield growing.tree()
