"""Proposers for engines under test: the real ones, and one that guesses as badly as can be."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from tandem.engine.proposers.contract import Continuations, Proposals
from tandem.engine.proposers.draft_model import DraftModelProposer
from tandem.engine.proposers.eagle import EagleProposer
from tandem.engine.proposers.medusa import MedusaProposer
from tandem.engine.proposers.ngram import NgramProposer
from tandem.engine.slots import Slots
from tandem.facts.steps import Placement, scratch_blocks
from tandem.facts.token_tree import TokenTree
from tandem.kernels.prompt_lookup import NgramSizes
from tandem.models.decoder import Decoder
from tandem.models.eagle import EagleHead, EagleWeights
from tandem.models.medusa import MedusaHeads
from tests.models.paging import poisoned_store

KINDS = ("hostile", "ngram", "draft", "medusa", "eagle", "draft tree", "medusa tree", "eagle tree")


class HostileProposer:
    """Wrong, too long, out of the vocabulary, or nothing; now and then right by chance."""

    def __init__(self, vocabulary: int) -> None:
        self._random = np.random.default_rng(5)
        self._vocabulary = vocabulary

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        pass

    def propose(self, rows: Continuations) -> Proposals:
        proposals = []
        for count in rows.counts.tolist():
            length = int(self._random.integers(0, count + 4))
            tokens = self._random.integers(0, self._vocabulary, length).tolist()
            if length and self._random.integers(0, 4) == 0:
                tokens[-1] = int(self._random.choice([-1, self._vocabulary, 2**40]))
            parents = self._random.integers(-2, length + 1, length).tolist()
            if self._random.integers(0, 2):
                # A tree, whatever it is of.
                parents = [min(parent, number - 1) for number, parent in enumerate(parents)]
            wrong = int(self._random.integers(0, 4)) == 0
            proposals.append(TokenTree(tuple(tokens), tuple(parents[wrong:])))
        return tuple(proposals)


def medusa_heads(decoder: Decoder, count: int = 3) -> MedusaHeads:
    """Random ones."""
    hidden = decoder.spec.hidden_features
    generator = torch.Generator().manual_seed(1)
    dtype = decoder.weights.compute
    weights = torch.randn(count * hidden, hidden, generator=generator).to(dtype)
    biases = torch.randn(count * hidden, generator=generator).to(dtype)
    storage = "bfloat16" if dtype is torch.float32 else "float64"
    return MedusaHeads(decoder.kernels.pack(weights, biases, storage), decoder.kernels)


def eagle_head(decoder: Decoder) -> EagleHead:
    """A random one, of the model's own shape."""
    spec = replace(decoder.spec, layers=1)
    spec = replace(spec, attention=replace(spec.attention, window_tokens=(None,)))
    hidden, dtype = spec.hidden_features, decoder.weights.compute
    layer = decoder.weights.layers[0]
    weight = torch.randn(hidden, 2 * hidden, generator=torch.Generator().manual_seed(2)) / hidden
    storage = "bfloat16" if dtype is torch.float32 else "float64"
    fusion = decoder.kernels.pack(weight.to(dtype), None, storage)
    return EagleHead(spec, EagleWeights(fusion, layer), decoder.kernels)


def proposer_of(kind: str, draft: Decoder, blocks: int, dtype: str):
    """`make_proposer` of an engine over so many blocks; `draft` drafts for itself or another."""

    def draft_store(drafting: Decoder | EagleHead, slots: Slots):
        block_size = slots.shape.block_size
        own_blocks = blocks + scratch_blocks(block_size) * slots.shape.slots
        return poisoned_store(drafting, own_blocks, dtype, block_size)

    def make(decoder: Decoder, slots: Slots):
        name, _, tree = kind.partition(" ")
        branches = 3 if tree else 1
        match name:
            case "ngram":
                return NgramProposer(decoder.kernels, slots, NgramSizes(1, 3))
            case "medusa":
                return MedusaProposer(decoder, slots, medusa_heads(decoder), branches)
            case "draft":
                return DraftModelProposer(draft, draft_store(draft, slots), slots, branches)
            case "eagle":
                head = eagle_head(decoder)
                return EagleProposer(decoder, head, draft_store(head, slots), slots, branches)
        return HostileProposer(decoder.spec.vocabulary_tokens)

    return make
