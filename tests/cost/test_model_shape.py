"""Shapes have the parameter counts that their publishers tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.config.hardware.worker import bundled_models, load_model_shape
from tandem.cost.model_shape import ModelShape, chunk_pairs, model_shape, power
from tandem.facts.errors import InvalidConfiguration
from tandem.models.configuration import describe_model, parse_model_spec
from tandem.models.directory import Fields

# From the checkpoints' own tensors; DeepSeek-V3 without its extra predicting layer.
EXACT = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-2-70b": 68_976_648_192,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
}
LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def shape_of(**changes: object) -> ModelShape:
    return model_shape(describe_model(Fields("m", {**LLAMA, **changes})), "m")


@pytest.mark.parametrize(("name", "parameters"), EXACT.items())
def test_parameters_are_exact(name, parameters):
    assert load_model_shape(name).parameters == parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("deepseek-v3", 671.03e9), ("opt-13b", 12.853e9), ("bloom-176b", 176.247e9)],
)
def test_parameters_are_close_where_small_ones_are_left_out(name, parameters):
    assert load_model_shape(name).parameters == pytest.approx(parameters, rel=1.5e-3)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("mixtral-8x7b", 12.9e9), ("qwen3-30b-a3b", 3.3e9), ("deepseek-v3", 37e9)],
)
def test_active_parameters_are_those_published(name, parameters):
    assert load_model_shape(name).active_parameters == pytest.approx(parameters, rel=0.02)


def test_the_bundled_model_counts_as_the_engine_counts_it():
    shape = load_model_shape("tandem-mini")
    assert shape.parameters == shape.active_parameters == 3_410_432
    assert shape.kv_elements_per_token == 4 * 2 * 4 * 32


def test_kv_of_grouped_and_of_latent_attention():
    # Mooncake's 320 KB a token for Llama-3-70B; DeepSeek-V3's 512 + 64 a layer.
    assert load_model_shape("llama-3-70b").kv_elements_per_token * 2 == 320 * 1024
    assert load_model_shape("deepseek-v3").kv_elements_per_token == 61 * 576


def test_every_bundled_shape_reads():
    assert {load_model_shape(name).label for name in bundled_models()} == set(bundled_models())


def test_flops_of_a_dense_model_are_two_a_parameter():
    shape = load_model_shape("llama-3.1-8b")
    layers = shape.parameters - 2 * shape.head_parameters
    assert shape.linear_flops_per_token == pytest.approx(2 * layers, rel=1e-4)


def test_one_token_touches_its_own_experts_and_many_touch_all():
    shape = load_model_shape("mixtral-8x7b")
    assert shape.touched_experts(0) == 0
    assert shape.touched_experts(1) == pytest.approx(2)
    assert shape.touched_experts(2) == pytest.approx(8 * (1 - 0.75**2))
    assert shape.touched_experts(1000) == pytest.approx(8)
    assert load_model_shape("llama-3.1-8b").touched_experts(5) == 0


@given(st.floats(0, 1), st.integers(0, 3000))
def test_power_is_power(base, exponent):
    assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-12, abs=1e-300)


@given(st.integers(0, 50), st.integers(0, 50))
def test_chunk_pairs_count_a_causal_mask(start, count):
    assert chunk_pairs(start, count) == sum(start + i + 1 for i in range(count))


def test_windows_are_read_by_layer():
    kinds = ["sliding_attention", "full_attention"]
    shape = shape_of(sliding_window=16, layer_types=kinds)
    assert (shape.windowed_layers, shape.window_tokens) == (1, 16)
    shape = shape_of(sliding_window=16, use_sliding_window=False)
    assert (shape.windowed_layers, shape.window_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok is 5"),
    ],
)
def test_errors_name_model_field_and_value(change, field):
    with pytest.raises(InvalidConfiguration, match=f"^m: {field}; expected"):
        shape_of(**change)


def test_what_is_missing_is_named():
    with pytest.raises(InvalidConfiguration, match=r"^m: hidden_size is missing"):
        shape_of(hidden_size=None)


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["LlamaForCausalLM"], "sliding_window": 16},
        {"architectures": ["MistralForCausalLM"]},
        {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 16},
        {
            "architectures": ["Qwen2ForCausalLM"],
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 1,
        },
        {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 2},
    ],
)
def test_costs_are_those_of_the_model_that_the_engine_runs(change):
    spec = parse_model_spec(Fields("m", {**LLAMA, "max_position_embeddings": 64, **change}))
    shape = shape_of(**change)
    windows = [tokens for tokens in spec.attention.window_tokens if tokens is not None]
    assert shape.windowed_layers == len(windows)
    assert shape.kv_elements_per_token == spec.kv_elements_per_token
    biases = (
        spec.attention.qkv_bias
        * spec.layers
        * (spec.attention.query_features + 2 * spec.attention.kv_features)
    )
    assert shape.parameters == spec.parameters - biases
