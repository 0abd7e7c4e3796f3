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
from tandem.engine.proposers.look_ahead import Numbers, guesses
from tandem.engine.slots import Slots
from tandem.facts.steps import Placement
from tandem.kv.store import KvStore
from tandem.models.decoder import Decoder
from tandem.models.eagle import EagleHead


class EagleProposer:
    """`kv` is as of `DraftKv`, of one layer; `branches` as of `look_ahead`."""

    def __init__(
        self, decoder: Decoder, head: EagleHead, kv: KvStore, slots: Slots, branches: int = 1
    ) -> None:
        self._branches = branches
        self._decoder = decoder
        self._head = head
        self._kv = DraftKv(kv, slots, shift=1, window=head.spec.attention.window_tokens[0])

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """See the port."""
        self._kv.sequences_placed(placements)

    def propose(self, rows: Continuations) -> Proposals:
        """See the port."""
        # A sequence of one token has no feature before it.
        wanting = np.flatnonzero((rows.counts > 0) & (rows.ends > 1))
        features = _Features(self._decoder, self._head, self._kv, rows, wanting)
        kernels = self._decoder.kernels
        return guesses(self._kv, features, kernels, rows, wanting, self._branches)


class _Features:
    """The features of one look ahead, as an `ElementModel`: first those of the model, then each
    guessed from the one before. `wanting` are the rows of `asked` that drafts are made for."""

    def __init__(
        self,
        decoder: Decoder,
        head: EagleHead,
        kv: DraftKv,
        asked: Continuations,
        wanting: NDArray[np.intp],
    ) -> None:
        self._decoder, self._head, self._kv = decoder, head, kv
        self._asked, self._wanting = asked, wanting
        # One tensor a call.
        self._states: list[Tensor] = []

    def begin(self, rows: DraftRows, chunks: Chunks, numbers: Numbers) -> Tensor:
        """See `ElementModel`."""
        return self._logits(rows, chunks, self._known(self._wanting[numbers], chunks))

    def go_on(self, rows: DraftRows, chunks: Chunks, sources: Numbers) -> Tensor:
        """See `ElementModel`."""
        states = torch.cat(self._states)
        index = torch.from_numpy(sources).to(states.device)
        return self._logits(rows, chunks, states.index_select(0, index))

    def _logits(self, rows: DraftRows, chunks: Chunks, features_TC: Tensor) -> Tensor:
        batch = self._kv.batch(rows, chunks)
        embedded_TC = self._decoder.embedded(batch.token_ids)
        newest_DC = self._head.forward(batch, embedded_TC, features_TC, self._kv.kv)
        self._states.append(newest_DC)
        return self._decoder.head_logits(newest_DC)

    def _known(self, numbers: NDArray[np.intp], chunks: Chunks) -> Tensor:
        """features_TC of the chunks' elements: those that the step computed, else zeros."""
        asked = self._asked
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
