"""Layers in one call have the bits of layers that are walked operation by operation."""

from dataclasses import replace

import pytest
import torch

from tandem.kernels.attention import AttentionBatch
from tandem.kernels.faces import Kernels, choose_kernels
from tandem.kernels.native import KernelArgumentError
from tandem.kernels.packed import Arithmetic, Storage
from tandem.kv.layout import KvDtype
from tandem.models.decoder import Decoder
from tandem.models.weights import WeightForm
from tests.models.paging import BLOCK_SIZE, Chunk, batch_of, poisoned_store
from tests.models.test_logits import load, shuffled_blocks, tokens_of
from tests.models.tiny import VARIANTS

CPU = torch.device("cpu")
FORMS: tuple[tuple[Arithmetic, Storage, KvDtype], ...] = (
    ("float32", "float32", "float32"),
    ("auto", "bfloat16", "bfloat16"),
    ("auto", "int8", "int8"),
    ("float32", "int8", "float16"),
    ("auto", "int4", "float32"),
    ("float32", "float16", "float32"),
)
PROMPT, DECODES = 45, 30


def native(arithmetic: Arithmetic) -> Kernels:
    kernels, why = choose_kernels(CPU, torch.float32, True, arithmetic)
    if kernels.join_layers is None:
        pytest.skip(why)
    return kernels


def both_ways(checkpoint, arithmetic: Arithmetic, storage: Storage) -> tuple[Decoder, Decoder]:
    """One model, with its layers in one call and walked."""
    joined = load(checkpoint, native(arithmetic), WeightForm(storage, torch.float32, CPU))
    walked = replace(joined.kernels, join_layers=None)
    return joined, Decoder(joined.spec, joined.weights, walked)


@pytest.mark.parametrize(("arithmetic", "storage", "kv"), FORMS)
@pytest.mark.parametrize("name", VARIANTS)
def test_one_call_has_the_bits_of_many(checkpoints, name, arithmetic, storage, kv):
    decoders = both_ways(checkpoints(name), arithmetic, storage)
    blocks = shuffled_blocks(3, 64, 2 * PROMPT)
    long = Chunk(tokens_of(1), blocks[:12], 0, PROMPT)
    short = Chunk(tokens_of(2), blocks[12:], 0, DECODES)
    steps = [
        batch_of([long]),
        batch_of([replace(short, stop=DECODES - 1)], torch.tensor([7])),
        # More rows than tokens, in any order.
        batch_of(
            [replace(short, start=DECODES - 1), replace(long, start=PROMPT - 1)],
            torch.tensor([1, 0, 1, 1]),
        ),
        batch_of([replace(long, start=20)], torch.empty(0, dtype=torch.int64)),
    ]
    stores = [poisoned_store(decoder, 64, kv) for decoder in decoders]
    for step in steps:
        one, many = (
            decoder.forward(step, store) for decoder, store in zip(decoders, stores, strict=True)
        )
        assert torch.equal(one, many)
        pools = [store.pool_BL2KSD.view(torch.uint8) for store in stores]
        assert torch.equal(*pools)


@pytest.mark.parametrize("wanted", [None, torch.arange(0, 540, 7)])
def test_so_have_more_rows_than_go_through_its_end_together(checkpoints, wanted):
    decoders = both_ways(checkpoints("qwen3"), "auto", "bfloat16")
    blocks = shuffled_blocks(3, 160, 144 * BLOCK_SIZE)
    chunks = [
        Chunk(tokens_of(seed), blocks[12 * seed : 12 * (seed + 1)], 0, PROMPT) for seed in range(12)
    ]
    step = batch_of(chunks, wanted)
    assert len(step.token_ids) > 512
    one, many = (decoder.forward(step, poisoned_store(decoder, 160)) for decoder in decoders)
    assert torch.equal(one, many)


def test_one_call_has_the_bits_of_many_for_a_tree(checkpoints):
    decoders = both_ways(checkpoints("qwen3"), "float32", "float32")
    tokens, blocks = tokens_of(4), shuffled_blocks(5)
    parents = torch.tensor([-1, 0, 0, 1, 2], dtype=torch.int32)
    hidden = []
    for decoder in decoders:
        store = poisoned_store(decoder, 64)
        decoder.forward(batch_of([Chunk(tokens, blocks, 0, PROMPT - 5)]), store)
        step = batch_of([Chunk(tokens, blocks, PROMPT - 5, PROMPT)])
        seen = step.attention
        tree = AttentionBatch(seen.query_start, seen.context_lengths, seen.block_table, parents)
        depth = torch.tensor([0, 1, 1, 2, 2])
        places = PROMPT - 5 + depth
        hidden.append(decoder.forward(replace(step, attention=tree, positions=places), store))
    assert torch.equal(*hidden)


def test_a_pipeline_stage_returns_memory_of_its_own(checkpoints):
    """What it received belongs to the transport."""
    joined, _ = both_ways(checkpoints("llama3"), "float32", "float32")
    step = batch_of([Chunk(tokens_of(6), shuffled_blocks(7), 0, 9)])
    received = joined.embedded(step.token_ids)
    hidden = joined.forward(step, poisoned_store(joined, 64), received)
    assert hidden.data_ptr() != received.data_ptr()


def test_a_pool_of_another_shape_is_refused(checkpoints):
    joined, _ = both_ways(checkpoints("llama3"), "float32", "float32")
    other, _ = both_ways(checkpoints("llama2"), "float32", "float32")
    step = batch_of([Chunk(tokens_of(6), shuffled_blocks(7), 0, 2 * BLOCK_SIZE)])
    with pytest.raises(KernelArgumentError, match="kv_B2KSD"):
        joined.forward(step, poisoned_store(other, 64))
    with pytest.raises(KernelArgumentError, match="places"):
        joined.forward(replace(step, positions=step.positions[1:]), poisoned_store(joined, 64))
