"""A smaller model as proposer (speculative decoding, Leviathan et al. 2023): it computes the same
tokens in a KV pool of its own.

Axes: D rows that draw, V vocabulary.
"""

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from tandem.engine.proposers.contract import Continuations, Proposals
from tandem.engine.proposers.draft_kv import Chunks, DraftKv, DraftRows
from tandem.engine.proposers.look_ahead import Numbers, guesses
from tandem.engine.slots import Slots
from tandem.facts.steps import Placement
from tandem.kv.store import KvStore
from tandem.models.decoder import Decoder


class DraftModelProposer:
    """`kv` is as of `DraftKv`, `branches` as of `look_ahead`."""

    def __init__(self, decoder: Decoder, kv: KvStore, slots: Slots, branches: int = 1) -> None:
        self._branches = branches
        self._decoder = decoder
        self._kv = DraftKv(kv, slots)

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """See the port."""
        self._kv.sequences_placed(placements)

    def propose(self, rows: Continuations) -> Proposals:
        """See the port. Nothing for sequences that are longer than the draft model's context."""
        fits = rows.ends + rows.counts <= self._decoder.spec.context_tokens
        wanting = np.flatnonzero((rows.counts > 0) & fits)
        return guesses(self._kv, self, self._decoder.kernels, rows, wanting, self._branches)

    def begin(self, rows: DraftRows, chunks: Chunks, numbers: Numbers) -> Tensor:
        """See `ElementModel`."""
        del numbers
        return self._logits(rows, chunks)

    def go_on(self, rows: DraftRows, chunks: Chunks, sources: Numbers) -> Tensor:
        """See `ElementModel`."""
        del sources
        return self._logits(rows, chunks)

    def _logits(self, rows: DraftRows, chunks: Chunks) -> Tensor:
        batch = self._kv.batch(rows, chunks)
        return self._decoder.logits(self._decoder.forward(batch, self._kv.kv))
