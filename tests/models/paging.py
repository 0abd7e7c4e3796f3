"""Lays sequences out in a poisoned block pool and runs a decoder over them, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tandem.kernels.attention import AttentionBatch
from tandem.kernels.kv_rows import encode_rows
from tandem.kv.layout import KvDtype, KvLayout
from tandem.kv.store import KvStore
from tandem.models.decoder import Decoder, TokenBatch
from tandem.models.eagle import EagleHead

BLOCK_SIZE = 4


@dataclass(frozen=True)
class Chunk:
    """Tokens `start .. stop` of a sequence that lies in `blocks`."""

    tokens: Sequence[int]
    blocks: Sequence[int]
    start: int
    stop: int


def poisoned_store(
    decoder: Decoder | EagleHead,
    blocks: int,
    dtype: KvDtype = "float32",
    block_size: int = BLOCK_SIZE,
) -> KvStore:
    """A pool full of NaN: whoever reads what was never written will show it."""
    spec = decoder.spec
    attention = spec.attention
    layout = KvLayout(spec.layers, attention.kv_heads, block_size, attention.head_dim, dtype)
    store = KvStore(layout, blocks, torch.device("cpu"))
    # Of codes the scale is no number.
    row = torch.full((layout.head_dim,), torch.nan)
    store.pool_BL2KSD[:] = encode_rows(row, store.pool_BL2KSD.dtype)
    return store


def batch_of(chunks: Sequence[Chunk], wanted: Tensor | None = None) -> TokenBatch:
    tokens, positions, slots, starts = [], [], [], [0]
    width = max(len(chunk.blocks) for chunk in chunks)
    for chunk in chunks:
        for position in range(chunk.start, chunk.stop):
            tokens.append(chunk.tokens[position])
            positions.append(position)
            block = chunk.blocks[position // BLOCK_SIZE]
            slots.append(block * BLOCK_SIZE + position % BLOCK_SIZE)
        starts.append(len(tokens))
    attention = AttentionBatch(
        query_start=torch.tensor(starts, dtype=torch.int32),
        context_lengths=torch.tensor([chunk.stop for chunk in chunks], dtype=torch.int32),
        block_table=torch.tensor(
            [[*chunk.blocks] + [-1] * (width - len(chunk.blocks)) for chunk in chunks],
            dtype=torch.int32,
        ),
    )
    return TokenBatch(
        torch.tensor(tokens), torch.tensor(positions), torch.tensor(slots), attention, wanted
    )


def run(decoder: Decoder, store: KvStore, *chunks: Chunk) -> Tensor:
    """logits_TV of every token of the step."""
    with torch.inference_mode():
        return decoder.logits(decoder.forward(batch_of(chunks), store))


def run_in_steps(decoder: Decoder, store: KvStore, chunk: Chunk, steps: Sequence[int]) -> Tensor:
    """logits_TV of `chunk`, computed in pieces that end at `steps` and at its end."""
    edges = [chunk.start, *steps, chunk.stop]
    return torch.cat(
        [
            run(decoder, store, Chunk(chunk.tokens, chunk.blocks, start, stop))
            for start, stop in pairwise(edges)
        ]
    )
