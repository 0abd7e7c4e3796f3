"""An EAGLE head as proposer: it goes on from the hidden states that the model has just computed,
one guessed state and token after the other.

What the model computed elsewhere, or for a prompt, is not at hand: there a feature is zeros, which
heads can be trained for. Element i of a sequence (see `draft_kv`) is made of token i + 1 and
feature i.
Axes: D rows that draw, T packed elements, C hidden.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.engine.proposers.contract import Continuations, Proposals
from tandem.engine.proposers.draft_kv import Chunks, DraftKv, DraftRows
from tandem.engine.slots import Slots
from tandem.facts.steps import Placement
from tandem.kv.store import KvStore
from tandem.models.decoder import Decoder
from tandem.models.eagle import EagleHead


class EagleProposer:
    """Guesses are drawn as the tokens themselves will be, with their parameters and their noise.
    `kv` is as of `DraftKv`, of one layer."""

    def __init__(self, decoder: Decoder, head: EagleHead, kv: KvStore, slots: Slots) -> None:
        self._decoder = decoder
        self._head = head
        self._slots = slots
        self._kv = DraftKv(kv, slots, shift=1, window=head.spec.attention.window_tokens[0])

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """See the port."""
        self._kv.sequences_placed(placements)

    def propose(self, rows: Continuations) -> Proposals:
        """See the port."""
        # A sequence of one token has no feature before it.
        wanting = np.flatnonzero((rows.counts > 0) & (rows.ends > 1))
        found: list[tuple[int, ...]] = [()] * len(rows.slots)
        if len(wanting):
            for row, tokens in zip(wanting.tolist(), self._draft(rows, wanting), strict=True):
                found[row] = tuple(tokens)
        return tuple(found)

    def _draft(self, asked: Continuations, wanting: NDArray[np.intp]) -> list[list[int]]:
        slots, ends, counts = asked.slots[wanting], asked.ends[wanting], asked.counts[wanting]
        rows = self._kv.rows(slots, ends)
        ready, chunks = self._kv.catch_up(rows)
        features_TC = self._known_features(asked, wanting[ready], chunks)
        guessed_DC = self._guess(rows.some(ready), chunks, features_TC)
        through = chunks.starts + chunks.counts == ends[ready] - 1
        guessed_DC = guessed_DC[torch.from_numpy(through).to(guessed_DC.device)]
        ready = ready[through]
        drawn: list[list[int]] = [[] for _ in slots]
        for place in range(int(counts.max())):
            going_on = counts[ready] > place
            guessed_DC = guessed_DC[torch.from_numpy(going_on).to(guessed_DC.device)]
            ready = ready[going_on]
            if not len(ready):
                break
            if place:
                newest = np.array([drawn[row][-1] for row in ready])
                starts = ends[ready] + place - 2
                chunks = Chunks(starts, np.ones_like(starts), newest)
                guessed_DC = self._guess(rows.some(ready), chunks, guessed_DC)
            logits_DV = self._decoder.head_logits(guessed_DC)
            draws = self._slots.sampling_rows(slots[ready], ends[ready] + place)
            tokens = self._decoder.kernels.sample(logits_DV, draws).tolist()
            for row, token in zip(ready.tolist(), tokens, strict=True):
                drawn[row].append(max(0, token))
        return drawn

    def _known_features(
        self, asked: Continuations, numbers: NDArray[np.intp], chunks: Chunks
    ) -> Tensor:
        """features_TC of the chunks' elements: those that the step computed, else zeros."""
        normed = self._decoder.normed(asked.hidden)
        features_TC = normed.new_zeros(len(chunks.tokens), normed.shape[1])
        first_hidden = asked.newest + 1 - asked.drawn
        at = 0
        for number, start, count in zip(numbers, chunks.starts, chunks.counts, strict=True):
            # The hidden states are those of the tokens before the newest.
            first_known = int(asked.ends[number]) - 1 - int(asked.drawn[number])
            first = max(int(start), first_known)
            known = int(start) + int(count) - first
            if known > 0:
                source = int(first_hidden[number]) + first - first_known
                target = at + first - int(start)
                features_TC[target : target + known] = normed[source : source + known]
            at += int(count)
        return features_TC

    def _guess(self, rows: DraftRows, chunks: Chunks, features_TC: Tensor) -> Tensor:
        """features_DC behind the last element of each row."""
        batch = self._kv.batch(rows, chunks)
        embedded_TC = self._decoder.embedded(batch.token_ids)
        return self._head.forward(batch, embedded_TC, features_TC, self._kv.kv)
