"""A smaller model as proposer (speculative decoding, Leviathan et al. 2023): it computes the same
tokens in a KV pool of its own.

Axes: D rows that draw, V vocabulary.
"""

from collections.abc import Iterable

import numpy as np
import torch

from tandem.engine.proposers.contract import Continuations, Proposals
from tandem.engine.proposers.draft_kv import Chunks, DraftKv
from tandem.engine.slots import Slots
from tandem.facts.steps import IntArray, Placement
from tandem.kv.store import KvStore
from tandem.models.decoder import Decoder


class DraftModelProposer:
    """Guesses are drawn as the tokens themselves will be, with their parameters and their noise: so
    they are equal as often as the two models' distributions overlap. `kv` is as of `DraftKv`."""

    def __init__(self, decoder: Decoder, kv: KvStore, slots: Slots) -> None:
        self._decoder = decoder
        self._slots = slots
        self._kv = DraftKv(kv, slots)

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """See the port."""
        self._kv.sequences_placed(placements)

    def propose(self, rows: Continuations) -> Proposals:
        """See the port. Nothing for sequences that are longer than the draft model's context."""
        fits = rows.ends + rows.counts <= self._decoder.spec.context_tokens
        wanting = np.flatnonzero((rows.counts > 0) & fits)
        found: list[tuple[int, ...]] = [()] * len(rows.slots)
        if len(wanting):
            drawn = self._draft(rows.slots[wanting], rows.ends[wanting], rows.counts[wanting])
            for row, tokens in zip(wanting.tolist(), drawn, strict=True):
                found[row] = tuple(tokens)
        return tuple(found)

    def _draft(self, slots: IntArray, ends: IntArray, counts: IntArray) -> list[list[int]]:
        rows = self._kv.rows(slots, ends)
        ready, chunks = self._kv.catch_up(rows)
        batch = self._kv.batch(rows.some(ready), chunks)
        logits_DV = self._decoder.logits(self._decoder.forward(batch, self._kv.kv))
        through = chunks.starts + chunks.counts == ends[ready]
        logits_DV = logits_DV[torch.from_numpy(through).to(logits_DV.device)]
        ready = ready[through]
        drawn: list[list[int]] = [[] for _ in slots]
        for place in range(int(counts.max())):
            ready = ready[counts[ready] > place]
            if not len(ready):
                break
            if place:
                newest = np.array([drawn[row][-1] for row in ready])
                starts = ends[ready] + place - 1
                chunks = Chunks(starts, np.ones_like(starts), newest)
                batch = self._kv.batch(rows.some(ready), chunks)
                logits_DV = self._decoder.logits(self._decoder.forward(batch, self._kv.kv))
            draws = self._slots.sampling_rows(slots[ready], ends[ready] + place)
            tokens = self._decoder.kernels.sample(logits_DV, draws).tolist()
            for row, token in zip(ready.tolist(), tokens, strict=True):
                drawn[row].append(max(0, token))
        return drawn
