"""A duel: our decoder over paged KV against transformers over whole sequences."""

import random
from dataclasses import replace

import pytest
import torch

from tandem.kernels.faces import reference_kernels
from tandem.kv.layout import KvDtype
from tandem.models.configuration import read_model_spec
from tandem.models.decoder import Decoder
from tandem.models.load import LoadPlan, load_decoder
from tandem.models.weights import WeightForm
from tests.models.paging import BLOCK_SIZE, Chunk, batch_of, poisoned_store, run, run_in_steps
from tests.models.tiny import VARIANTS

CPU = torch.device("cpu")
FP32 = WeightForm("float32", torch.float32, CPU)
PROMPT_TOKENS = 45
# Measured: 8e-6 at worst in plain torch, 1.5e-5 native, over logits of standard deviation 1.6.
TOLERANCE = 5e-5


def tokens_of(seed: int, count: int = PROMPT_TOKENS) -> list[int]:
    return random.Random(seed).choices(range(199), k=count)


def shuffled_blocks(seed: int, pool_blocks: int = 64, count: int = PROMPT_TOKENS) -> list[int]:
    return random.Random(seed).sample(range(pool_blocks), -(-count // BLOCK_SIZE))


def load(checkpoint, kernels, form: WeightForm = FP32) -> Decoder:
    spec = read_model_spec(checkpoint.directory)
    return load_decoder(spec, LoadPlan(checkpoint.directory, form), kernels)


def expected_logits(oracle, tokens):
    with torch.inference_mode():
        return oracle(torch.tensor([tokens])).logits[0].float()


def prompt_logits(decoder: Decoder, seed: int, dtype: KvDtype = "float32"):
    """The tokens of a prompt, and their logits, computed in one step."""
    tokens = tokens_of(seed)
    chunk = Chunk(tokens, shuffled_blocks(seed + 1), 0, PROMPT_TOKENS)
    return tokens, run(decoder, poisoned_store(decoder, 64, dtype), chunk)


def assert_equal(found, expected, tolerance=TOLERANCE):
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)


@pytest.fixture(params=VARIANTS)
def checkpoint(request, checkpoints):
    return checkpoints(request.param)


def test_whole_prompt_token_by_token_and_in_chunks(checkpoint, kernels):
    decoder = load(checkpoint, kernels)
    tokens = tokens_of(1)
    expected = expected_logits(checkpoint.oracle, tokens)
    assert expected.std() > 0.3
    for steps in ((), range(1, PROMPT_TOKENS), (3, 4, 17, 33)):
        chunk = Chunk(tokens, shuffled_blocks(2), 0, PROMPT_TOKENS)
        store = poisoned_store(decoder, 64)
        assert_equal(run_in_steps(decoder, store, chunk, steps), expected)


def test_after_a_prefix_hit_beside_other_sequences(checkpoint, kernels):
    decoder = load(checkpoint, kernels)
    store = poisoned_store(decoder, 64)
    first = tokens_of(3)
    blocks = shuffled_blocks(4)
    run(decoder, store, Chunk(first, blocks, 0, PROMPT_TOKENS))
    shared = 6 * BLOCK_SIZE
    second = first[:shared] + tokens_of(5, 13)
    spare = [block for block in range(64) if block not in blocks]
    third = tokens_of(6, 7)
    prefix_hit = Chunk(second, blocks[:6] + spare[:4], shared, len(second))
    fresh = Chunk(third, spare[4:6], 0, 7)
    both = run(decoder, store, prefix_hit, fresh)
    assert_equal(both[:13], expected_logits(checkpoint.oracle, second)[shared:])
    assert_equal(both[13:], expected_logits(checkpoint.oracle, third))
    # Whoever shares a block leaves its content to the first owner.
    again = run(decoder, store, Chunk(first, blocks, PROMPT_TOKENS - 1, PROMPT_TOKENS))
    assert_equal(again[0], expected_logits(checkpoint.oracle, first)[-1])


@pytest.mark.parametrize("name", ["llama3", "mistral_window", "qwen2_window"])
def test_only_the_wanted_rows(checkpoints, kernels, name):
    decoder = load(checkpoints(name), kernels)
    tokens = tokens_of(7)
    chunk = Chunk(tokens, shuffled_blocks(8), 0, PROMPT_TOKENS)
    wanted = torch.tensor([PROMPT_TOKENS - 1, 0, 20])
    hidden = decoder.forward(batch_of([chunk], wanted), poisoned_store(decoder, 64))
    assert hidden.shape == (3, 64)
    expected = expected_logits(checkpoints(name).oracle, tokens)[wanted]
    assert_equal(decoder.logits(hidden), expected)


def test_no_wanted_row_at_all(checkpoints, kernels):
    """A chunk in the middle of a prompt draws no token."""
    decoder = load(checkpoints("llama3"), kernels)
    store = poisoned_store(decoder, 64)
    tokens, blocks = tokens_of(19), shuffled_blocks(20)
    nothing = torch.empty(0, dtype=torch.int64)
    hidden = decoder.forward(batch_of([Chunk(tokens, blocks, 0, 30)], nothing), store)
    assert decoder.logits(hidden).shape == (0, 199)
    rest = run(decoder, store, Chunk(tokens, blocks, 30, PROMPT_TOKENS))
    assert_equal(rest, expected_logits(checkpoints("llama3").oracle, tokens)[30:])


def test_a_window_forgets(checkpoints, kernels):
    """Blocks that lie wholly before the window may be gone, their entries pointing anywhere."""
    decoder = load(checkpoints("mistral_window"), kernels)
    tokens = tokens_of(9)
    blocks = shuffled_blocks(10)
    store = poisoned_store(decoder, 64)
    run(decoder, store, Chunk(tokens, blocks, 0, PROMPT_TOKENS - 1))
    first_kept = (PROMPT_TOKENS - 11) // BLOCK_SIZE
    for block in blocks[:first_kept]:
        store.pool_BL2KSD[block].fill_(float("nan"))
    last = run(decoder, store, Chunk(tokens, blocks, PROMPT_TOKENS - 1, PROMPT_TOKENS))
    assert_equal(last[0], expected_logits(checkpoints("mistral_window").oracle, tokens)[-1])


def test_a_negative_slot_keeps_nothing(checkpoints, kernels):
    decoder = load(checkpoints("llama3"), kernels)
    store = poisoned_store(decoder, 8)
    store.pool_BL2KSD.zero_()
    batch = batch_of([Chunk([5, 6, 7], [3], 0, 3)])
    decoder.forward(replace(batch, slots=torch.tensor([-1, 13, -1])), store)
    written_BS = store.pool_BL2KSD.ne(0).any(dim=5).any(dim=3).all(dim=2).all(dim=1)
    assert written_BS.nonzero().tolist() == [[3, 1]]
    assert store.pool_BL2KSD.ne(0).sum() <= store.pool_BL2KSD[3][..., 1, :].numel()


@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama_biased", "qwen3_tied"])
def test_narrow_storage_is_fp32_arithmetic_over_rounded_weights(
    checkpoints, tmp_path, kernels, name, storage
):
    checkpoint = checkpoints(name)
    decoder = load(checkpoint, kernels, WeightForm(storage, torch.float32, CPU))
    oracle = type(checkpoint.oracle)(checkpoint.oracle.config).eval()
    oracle.load_state_dict(
        {
            key: value.to(getattr(torch, storage)).float() if value.dim() == 2 else value
            for key, value in checkpoint.oracle.state_dict().items()
        }
    )
    tokens, found = prompt_logits(decoder, 11)
    assert_equal(found, expected_logits(oracle, tokens))


@pytest.mark.parametrize("name", ["llama_biased", "qwen3_tied"])
def test_int8_storage_is_close(checkpoints, kernels, name):
    checkpoint = checkpoints(name)
    decoder = load(checkpoint, kernels, WeightForm("int8", torch.float32, CPU))
    tokens, found = prompt_logits(decoder, 13)
    expected = expected_logits(checkpoint.oracle, tokens)
    assert (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize("name", ["llama3", "mistral_window", "qwen3_tied"])
def test_float64_does_not_depend_on_chunks(checkpoints, name):
    form = WeightForm("float64", torch.float64, CPU)
    checkpoint = checkpoints(name)
    decoder = load(checkpoint, reference_kernels(), form)
    tokens = tokens_of(15)
    chunk = Chunk(tokens, shuffled_blocks(16), 0, PROMPT_TOKENS)
    whole = run(decoder, poisoned_store(decoder, 64, "float64"), chunk)
    pieces = run_in_steps(decoder, poisoned_store(decoder, 64, "float64"), chunk, (1, 9, 30))
    assert whole.dtype is torch.float64
    assert_equal(pieces, whole, 1e-11)
    assert_equal(whole.float(), expected_logits(checkpoint.oracle, tokens))


def test_bfloat16_everywhere_as_on_a_gpu(checkpoints):
    form = WeightForm("bfloat16", torch.bfloat16, CPU)
    checkpoint = checkpoints("llama3")
    decoder = load(checkpoint, reference_kernels(), form)
    tokens, found = prompt_logits(decoder, 17, "bfloat16")
    expected = expected_logits(checkpoint.oracle, tokens)
    assert found.dtype is torch.float32
    assert (found - expected).norm() < 0.1 * expected.norm()
