"""A step in one call has the bits of one that is run operation by operation, and so have guesses of
heads."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tandem.engine.proposers.contract import Continuations
from tandem.engine.proposers.medusa import MedusaProposer
from tandem.engine.slots import Slots, SlotShape
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import Placement
from tandem.kernels.native import KernelArgumentError
from tandem.kernels.packed import Arithmetic, Storage
from tandem.kernels.steps import StepRows
from tandem.kv.layout import KvDtype
from tandem.models.decoder import Decoder
from tandem.models.parallel import Place
from tandem.models.weights import WeightForm
from tests.engine.proposing import medusa_heads
from tests.models.paging import BLOCK_SIZE, Chunk, batch_of, poisoned_store
from tests.models.test_joined_layers import CPU, FORMS, native
from tests.models.test_logits import load, shuffled_blocks, tokens_of
from tests.models.tiny import VARIANTS

SLOTS, CONTEXT, BLOCKS = 3, 96, 80
SAMPLINGS = (
    SamplingParameters(temperature=0.0),
    SamplingParameters(temperature=0.9, top_p=0.9, seed=5),
    SamplingParameters(temperature=1.3, top_k=7, min_p=0.01, seed=2**63 + 1),
)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def filled_slots() -> Slots:
    """Each with a sequence of its own, and blocks that nobody else has."""
    slots = Slots(SlotShape(SLOTS, CONTEXT, BLOCK_SIZE), CPU)
    table = np.array(shuffled_blocks(3, BLOCKS, SLOTS * CONTEXT), np.int32).reshape(SLOTS, -1)
    for slot, sampling in enumerate(SAMPLINGS):
        tokens = np.array(tokens_of(slot, CONTEXT - 10), np.uint32)
        slots._place(Placement(slot, str(slot), tokens, len(tokens), sampling))
        slots.block_table[slot] = table[slot]
    return slots


# (slots, starts, counts, draws) of steps, one after the other: prompts, decodes, drafts of unlike
# lengths beside a prompt.
STEPS = (
    (numbers(2, 0), numbers(0, 0), numbers(37, 20), numbers(1, 1)),
    (numbers(0, 2), numbers(20, 37), numbers(1, 1), numbers(1, 1)),
    (numbers(2, 1, 0), numbers(38, 0, 21), numbers(4, 11, 2), numbers(4, 1, 2)),
)


def apart(decoder: Decoder, slots: Slots, store, step) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states and tokens of all draws, which are written behind what is known."""
    chunks, wanted, row_slots, positions, packed = [], [], [], [], 0
    for slot, start, count, draws in zip(*(each.tolist() for each in step), strict=True):
        stop = start + count
        blocks = slots.block_table[slot].tolist()
        chunks.append(Chunk(slots.tokens[slot].tolist(), blocks, start, stop))
        packed += count
        wanted += range(packed - draws, packed)
        row_slots += [slot] * draws
        positions += range(stop - draws + 1, stop + 1)
    hidden_RC = decoder.forward(batch_of(chunks, torch.tensor(wanted)), store)
    rows = slots.sampling_rows(np.array(row_slots), np.array(positions))
    tokens_R = decoder.kernels.sample(decoder.logits(hidden_RC), rows)
    slots.write_tokens(np.array(row_slots), np.array(positions), tokens_R.clamp(min=0))
    return hidden_RC, tokens_R


@pytest.mark.parametrize(("arithmetic", "storage", "kv"), FORMS)
@pytest.mark.parametrize("name", VARIANTS)
def test_one_call_has_the_bits_of_many(
    checkpoints, name: str, arithmetic: Arithmetic, storage: Storage, kv: KvDtype
) -> None:
    decoder = load(checkpoints(name), native(arithmetic), WeightForm(storage, torch.float32, CPU))
    one, many = filled_slots(), filled_slots()
    stores = [poisoned_store(decoder, BLOCKS, kv) for _ in range(2)]
    run = decoder.join_step(one.columns, stores[0])
    assert run is not None
    for step in STEPS:
        found, wanted = run.draw(StepRows(*step)), apart(decoder, many, stores[1], step)
        assert torch.equal(found[0], wanted[0])
        assert torch.equal(found[1], wanted[1])
        assert torch.equal(one.tokens, many.tokens)
        assert torch.equal(*(store.pool_BL2KSD.view(torch.uint8) for store in stores))


def test_one_call_ends_with_the_logits_that_it_would_draw_from(checkpoints) -> None:
    """And draws nothing then."""
    decoder = load(checkpoints("qwen3"), native("float32"))
    one, many = filled_slots(), filled_slots()
    stores = [poisoned_store(decoder, BLOCKS) for _ in range(2)]
    run = decoder.join_step(one.columns, stores[0])
    assert run is not None
    for step in STEPS:
        before = one.tokens.clone()
        hidden_RC, logits_RV = run.logits(StepRows(*step))
        assert torch.equal(one.tokens, before)
        wanted_RC, _ = apart(decoder, many, stores[1], step)
        assert torch.equal(hidden_RC, wanted_RC)
        assert torch.equal(logits_RV, decoder.logits(wanted_RC))
        one.tokens.copy_(many.tokens)
        assert torch.equal(*(store.pool_BL2KSD.view(torch.uint8) for store in stores))


def test_a_share_of_a_model_has_no_step_of_its_own(checkpoints) -> None:
    decoder = load(checkpoints("llama3"), native("float32"))
    stage = Decoder(decoder.spec, decoder.weights, decoder.kernels, place=Place(stages=2))
    slots = Slots(SlotShape(SLOTS, CONTEXT, BLOCK_SIZE), CPU)
    assert stage.join_step(slots.columns, poisoned_store(decoder, 8)) is None


def test_rows_that_cannot_be_run_are_refused(checkpoints) -> None:
    decoder = load(checkpoints("llama3"), native("float32"))
    slots = Slots(SlotShape(SLOTS, CONTEXT, BLOCK_SIZE), CPU)
    run = decoder.join_step(slots.columns, poisoned_store(decoder, 8))
    assert run is not None
    one = numbers(1)
    with pytest.raises(KernelArgumentError, match="starts"):
        run.draw(StepRows(one, np.zeros(1, np.int64), one, one))
    with pytest.raises(KernelArgumentError, match="rows"):
        run.draw(StepRows(one, one, one, numbers(1, 1)))
    # There is no place for what it draws.
    with pytest.raises(KernelArgumentError, match=f"ends below {CONTEXT}"):
        run.draw(StepRows(one, numbers(CONTEXT - 1), one, one))


@pytest.mark.parametrize("storage", ["bfloat16", "int8"])
def test_heads_guess_the_same_in_one_call(checkpoints, storage: Storage) -> None:
    """But for the rounding of an activation: these guesses are no ties."""
    decoder = load(checkpoints("qwen3"), native("auto"), WeightForm(storage, torch.float32, CPU))
    kernels = replace(decoder.kernels, join_draft_heads=None)
    other = Decoder(decoder.spec, decoder.weights, kernels)
    slots, heads = filled_slots(), medusa_heads(decoder, 4)
    generator, said = torch.Generator().manual_seed(3), set()
    for counts in (numbers(4), numbers(2, 0, 3), numbers(1, 1), numbers(0)):
        rows = len(counts)
        states = torch.randn(2 * rows, decoder.spec.hidden_features, generator=generator)
        asked = Continuations(
            numbers(*range(rows)), numbers(*range(40, 40 + rows)), counts,
            (2,) * rows, states, tuple(range(2 * rows)),
        )  # fmt: skip
        found = MedusaProposer(decoder, slots, heads).propose(asked)
        assert found == MedusaProposer(other, slots, heads).propose(asked)
        assert [len(tree) for tree in found] == counts.tolist()
        said |= {token for tree in found for token in tree.tokens}
    assert len(said) > 3


def test_heads_guess_by_all_parameters_of_a_draw(checkpoints) -> None:
    """XTC leaves out the likeliest tokens, which one call knows nothing of."""
    decoder = load(checkpoints("qwen3"), native("float32"))
    slots, heads = filled_slots(), medusa_heads(decoder, 4)
    states = torch.randn(
        1, decoder.spec.hidden_features, generator=torch.Generator().manual_seed(3)
    )
    asked = Continuations(numbers(0), numbers(40), numbers(4), (1,), states, (0,))
    before = MedusaProposer(decoder, slots, heads).propose(asked)
    excluding = SamplingParameters(temperature=1.0, xtc_threshold=1e-4, xtc_probability=1.0)
    tokens = np.array(tokens_of(0, CONTEXT - 10), np.uint32)
    slots._place(Placement(0, "0", tokens, len(tokens), excluding))
    found = MedusaProposer(decoder, slots, heads).propose(asked)
    kernels = replace(decoder.kernels, join_draft_heads=None)
    other = Decoder(decoder.spec, decoder.weights, kernels)
    assert found == MedusaProposer(other, slots, heads).propose(asked)
    assert found != before
