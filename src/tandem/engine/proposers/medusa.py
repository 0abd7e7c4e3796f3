"""Medusa heads as proposer: from the hidden state that a token was drawn from, a head each guesses
one of the tokens behind it (Cai et al., Medusa: Simple LLM Inference Acceleration Framework with
Multiple Decoding Heads, 2024).

Axes: D rows that draw, R of these times heads, C hidden, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from tandem.engine.proposers.contract import Continuations, Proposals, chains
from tandem.engine.proposers.growing_tree import ROOT, GrowingTree, candidate_shares
from tandem.engine.proposers.ngram import known_tokens
from tandem.engine.slots import Slots
from tandem.facts.steps import Placement
from tandem.facts.token_tree import NO_GUESSES, TokenTree
from tandem.kernels.draft_heads import HeadsLookUp
from tandem.kernels.prompt_lookup import NgramSizes
from tandem.kernels.sampling import DraftCandidates, SamplingRows
from tandem.models.decoder import Decoder
from tandem.models.medusa import MedusaHeads

# A head sees no other token than the last: names and numbers it cannot copy. Where it gives its own
# guess less than even odds, what followed the last time is as good: by the bundled model's answers.
LOOK_UP = HeadsLookUp(sure=math.log(0.5), sizes=NgramSizes(least=1))


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
        joined = decoder.join_draft_heads(heads.layers, LOOK_UP, slots.columns)
        self._guess_ahead = joined if branches == 1 else None

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """Nothing is remembered."""

    def propose(self, rows: Continuations) -> Proposals:
        """See the port. As many tokens behind each other as there are heads at most."""
        counts = rows.counts.tolist()
        heads = min(max(counts, default=0), self._heads.count)
        if not heads:
            return (NO_GUESSES,) * len(counts)
        if self._guess_ahead is not None and not self._slots.filters_late(rows.slots):
            guesses_DH = self._guess_ahead(rows.slots, rows.ends, rows.newest_hidden, heads)
            return chains(guesses_DH.tolist(), counts)
        logits_RV, draws = self._logits(rows, heads)
        kernels = self._decoder.kernels
        if self._branches > 1:
            candidates = kernels.sample_candidates(logits_RV, draws, self._branches)
            tokens_R = candidates.tokens[:, 0]
            logprobs_R = torch.log_softmax(candidates.scores, dim=1)[:, 0]
            guesses_DH = self._looked_up(rows, heads, tokens_R, logprobs_R)
            return tuple(grown_trees(counts, guesses_DH.tolist(), candidates))
        tokens_R = kernels.sample(logits_RV, draws)
        logprobs_R = kernels.token_logprobs(logits_RV, tokens_R, 0).logprob
        return chains(self._looked_up(rows, heads, tokens_R, logprobs_R).tolist(), counts)

    def _logits(self, rows: Continuations, heads: int) -> tuple[Tensor, SamplingRows]:
        """All heads at once: a row for each sequence and head."""
        normed_DC = self._decoder.normed(rows.newest_hidden)
        logits_RV = self._decoder.head_logits(self._heads.states(normed_DC, heads))
        positions_DH = rows.ends[:, None] + np.arange(heads, dtype=np.int32)
        draws = self._slots.sampling_rows(np.repeat(rows.slots, heads), positions_DH.ravel())
        return logits_RV, draws

    def _looked_up(
        self, rows: Continuations, heads: int, tokens_R: Tensor, logprobs_R: Tensor
    ) -> Tensor:
        """guesses_DH, of what the heads say and of what followed before."""
        guesses_DH = tokens_R.view(-1, heads).cpu().contiguous()
        unsure_DH = ~(logprobs_R >= LOOK_UP.sure).view(-1, heads).cpu()
        known = known_tokens(self._slots, rows)
        self._decoder.kernels.look_up_prompt(known, LOOK_UP.sizes, guesses_DH, unsure_DH)
        return guesses_DH


def grown_trees(
    counts: Sequence[int], chains_DH: Sequence[Sequence[int]], candidates: DraftCandidates
) -> Iterator[TokenTree]:
    """Of each row the likeliest so many guesses: what a head says may come behind all that the head
    before it says. What was looked up for the row's chain comes behind what precedes it there."""
    tokens, shares = candidate_shares(candidates)
    for row, (count, chain) in enumerate(zip(counts, chains_DH, strict=True)):
        growing, first = GrowingTree(count), row * len(chain)
        asked = [ROOT] if count else []
        while asked:
            for number in asked:
                path = growing.path_tokens(number)
                if len(path) == len(chain):
                    growing.grow(number, (), ())
                    continue
                at = first + len(path)
                looked_up = [chain[len(path)]] if path == chain[: len(path)] else []
                more = [token for token in looked_up if token not in tokens[at]]
                growing.grow(number, tokens[at] + more, shares[at] + [LOOK_UP.sure] * len(more))
            asked = growing.worth_growing(count)
        yield growing.tree()
