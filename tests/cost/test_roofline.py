"""The roofline: exact on paper, monotone, and quick in the same answer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.config.hardware.worker import load_device, load_model_shape
from tandem.cost.device import Efficiency, Latency
from tandem.cost.model_shape import model_shape
from tandem.cost.roofline import AttentionRates, roofline
from tandem.cost.sharding import Sharding
from tandem.cost.worker import StepShape
from tandem.facts.errors import InvalidConfiguration
from tandem.models.configuration import describe_model
from tandem.models.directory import Fields
from tests.cost.shapes import assert_decodes_agree, assert_monotone, more_work

H100 = load_device("h100")
IDEAL = replace(
    H100,
    efficiency=Efficiency(1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
    latency=Latency(0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
)
LLAMA = load_model_shape("llama-3.1-8b")
WINDOWED_CONFIG: dict[str, object] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 32_000,
    "sliding_window": 512,
    "layer_types": ["sliding_attention", "full_attention"] * 4,
}
WINDOWED = model_shape(describe_model(Fields("windowed", WINDOWED_CONFIG)), "windowed")
MODELS = [
    roofline(LLAMA, H100, Sharding()),
    roofline(load_model_shape("llama-3-70b"), load_device("a100"), Sharding(4, 2)),
    roofline(load_model_shape("deepseek-v3"), load_device("h200"), Sharding(8, 1, "fp8", "fp8")),
    roofline(load_model_shape("mixtral-8x7b"), H100, Sharding(2, 1)),
    roofline(WINDOWED, load_device("cpu"), Sharding(1, 1, "fp32", "fp32")),
]
models = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.shape.label)


def without_elementwise(shape, sharding):
    return replace(roofline(shape, IDEAL, sharding), token_s=0.0)


def test_one_decode_streams_weights_and_kv_once():
    model = without_elementwise(LLAMA, Sharding())
    matrices = LLAMA.parameters - LLAMA.head_parameters - (2 * 32 + 1) * 4096
    kv_bytes = 1000 * LLAMA.kv_elements_per_token * 2
    expected = (2 * matrices + kv_bytes) / 3.35e12
    assert model.decode_seconds(1, 1000) == pytest.approx(expected, rel=1e-12)


def test_a_long_prompt_computes_at_peak():
    model = without_elementwise(LLAMA, Sharding())
    tokens = 8192
    pairs = tokens * (tokens + 1) // 2
    flops = tokens * LLAMA.linear_flops_per_token + 32 * pairs * 4 * 32 * 128
    expected = flops / 989e12
    assert model.seconds(StepShape(((0, tokens),))) == pytest.approx(expected, rel=1e-12)


def test_an_all_reduce_moves_what_a_ring_moves():
    one, two = (roofline(LLAMA, IDEAL, Sharding(ranks)) for ranks in (1, 2))
    state_bytes = 4096 * 2
    # Norms are not cut: their share of the traffic stays.
    norms_s = 32 * 8 * 4096 * 2 / 3.35e12
    cut_s = (one.token_s - norms_s) / 2
    reduced_s = 2 * 32 * state_bytes / 450e9
    assert two.token_s == pytest.approx(norms_s + cut_s + reduced_s, rel=1e-12)


def test_stages_share_the_work():
    shape = load_model_shape("llama-3-70b")
    whole = without_elementwise(shape, Sharding(8, 1))
    stage = without_elementwise(shape, Sharding(8, 4))
    assert stage.stages == 4
    step = StepShape(((100, 500),), 7, 7000, 8)
    assert 4 * stage.seconds(step) == pytest.approx(whole.seconds(step), rel=1e-12)


def test_a_few_tokens_of_a_mixture_stream_few_experts():
    shape = load_model_shape("deepseek-v3")
    model = roofline(shape, load_device("h200"), Sharding(8, 1, "fp8"))
    # One token streams the active part; many stream all of it.
    assert model.decode_seconds(1, 1) < model.decode_seconds(256, 256) / 5


def test_a_latent_is_copied_where_heads_are_cut():
    shape = load_model_shape("deepseek-v3")
    one, eight = (roofline(shape, IDEAL, Sharding(ranks, 1, "fp8", "fp8")).full for ranks in (1, 8))
    assert one.chunk_context_s == eight.chunk_context_s
    assert one.pair_s == pytest.approx(8 * eight.pair_s)


@models
@given(pair=more_work())
def test_more_work_never_takes_less_time(model, pair):
    assert_monotone(model, pair)


@models
@given(sequences=st.integers(0, 500), context=st.integers(0, 2_000_000))
def test_quick_decodes_are_the_same_decodes(model, sequences, context):
    assert_decodes_agree(model, sequences, context if sequences else 0)


@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 50))
def test_windows_see_what_a_mask_counts(start, count, window):
    rates = AttentionRates(pair_s=1.0, chunk_context_s=0.0, decode_s=0.0)
    seen = sum(min(window, position + 1) for position in range(start, start + count))
    assert rates.chunk_seconds(start, count, window) == seen


@pytest.mark.parametrize(
    ("sharding", "problem"),
    [
        (Sharding(3), "tensor_parallel is 3; expected a divisor of the 32 heads"),
        (Sharding(16), "tensor_parallel is 16, but a node holds 8 h100"),
        (Sharding(1, 33), "pipeline_parallel is 33; llama-3.1-8b has 32 layers"),
    ],
)
def test_impossible_cuts_are_refused(sharding, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        roofline(LLAMA, H100, sharding)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tensor_parallel": 0}, "tensor_parallel is 0"),
        ({"weight_precision": "fp5"}, "weight_precision is 'fp5'; expected one of fp32, bf16"),
    ],
)
def test_a_sharding_checks_itself(fields, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        Sharding(**fields)
