"""What the spellings of config.json mean, and what is refused."""

import json

import pytest
from transformers import LlamaConfig

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import LinearScaling, Llama3Scaling, ModelSpec, RopeSpec, YarnScaling
from tandem.models.configuration import parse_model_spec, read_model_spec
from tandem.models.directory import Fields

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 199,
    "max_position_embeddings": 256,
}


def parse(remove: str = "", **changes: object) -> ModelSpec:
    values = {name: value for name, value in LLAMA.items() if name != remove}
    return parse_model_spec(Fields("config.json", {**values, **changes}))


def qwen(**changes: object) -> ModelSpec:
    return parse(architectures=["Qwen2ForCausalLM"], **changes)


def test_what_may_be_left_out():
    spec = parse()
    assert (spec.attention.kv_heads, spec.attention.head_dim, spec.attention.scale) == (4, 16, 0.25)
    assert spec.rope == RopeSpec(10_000.0, None, 1.0)
    assert spec.norm.eps == 1e-6
    assert spec.attention.window_tokens == (None, None, None)
    assert not spec.tied_embeddings
    assert spec.weight_dtype == "float32"


def test_null_means_left_out():
    assert parse(head_dim=None, num_key_value_heads=None, rope_scaling=None) == parse()


def test_model_type_stands_in_for_architectures():
    assert parse(remove="architectures") == parse()


@pytest.mark.parametrize("spelling", ["dtype", "torch_dtype"])
def test_both_spellings_of_dtype(spelling):
    assert parse(**{spelling: "bfloat16"}).weight_dtype == "bfloat16"


SCALINGS = [
    ({"rope_type": "default"}, None),
    ({"rope_type": "linear", "factor": 4}, LinearScaling(4.0)),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        Llama3Scaling(8.0, 1.0, 4.0, 64),
    ),
    (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "attention_factor": 0.8,
            "beta_fast": 16,
            "truncate": False,
        },
        YarnScaling(4.0, 128, 0.8, 16.0, 1.0, False),
    ),
]


@pytest.mark.parametrize(("fields", "scaling"), SCALINGS)
def test_three_spellings_of_rope_scaling(fields, scaling):
    expected = RopeSpec(5000.0, scaling)
    older = {("type" if name == "rope_type" else name): value for name, value in fields.items()}
    assert parse(rope_parameters={**fields, "rope_theta": 5000.0}).rope == expected
    assert parse(rope_scaling=fields, rope_theta=5000.0).rope == expected
    assert parse(rope_scaling=older, rope_theta=5000).rope == expected


def test_yarn_derives_its_attention_factor_and_context():
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    spec = parse(rope_scaling=yarn)
    assert spec.rope.scaling.attention_factor == pytest.approx(1.1386294)
    assert spec.context_tokens == 1024
    deepseek = parse(rope_scaling={**yarn, "mscale": 2.0, "mscale_all_dim": 1.0})
    assert deepseek.rope.scaling.attention_factor == pytest.approx(1.2772589 / 1.1386294)
    longer = parse(rope_scaling=yarn, max_position_embeddings=2048)
    assert longer.context_tokens == 2048


def test_the_original_context_falls_back_to_the_whole():
    assert parse(rope_scaling={"type": "yarn", "factor": 2.0}).context_tokens == 512
    outside = parse(
        rope_scaling={"type": "yarn", "factor": 2.0}, original_max_position_embeddings=64
    )
    assert outside.rope.scaling.original_context_tokens == 64


def test_windows():
    mistral = ["MistralForCausalLM"]
    assert parse(architectures=mistral).attention.window_tokens == (4096,) * 3
    assert parse(architectures=mistral, sliding_window=7).attention.window_tokens == (7,) * 3
    assert parse(architectures=mistral, sliding_window=None).attention.window_tokens == (None,) * 3
    window = {"sliding_window": 7}
    assert qwen(**window).attention.window_tokens == (None,) * 3
    window["use_sliding_window"] = True
    assert qwen(**window).attention.window_tokens == (None,) * 3
    assert qwen(**window, max_window_layers=2).attention.window_tokens == (None, None, 7)
    assert qwen(**window, max_window_layers=0).attention.window_tokens == (7, 7, 7)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert qwen(**window, layer_types=kinds).attention.window_tokens == (7, None, 7)


def test_biases_and_norms():
    biased = parse(attention_bias=True, mlp_bias=True)
    assert biased.attention.qkv_bias and biased.attention.output_bias and biased.feed_forward_bias
    assert qwen().attention.qkv_bias and not qwen().attention.output_bias
    qwen3 = parse(architectures=["Qwen3ForCausalLM"])
    assert qwen3.attention.qk_norm and qwen3.attention.head_dim == 128


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_hidden_layers"])
def test_a_missing_field_is_named(field):
    with pytest.raises(InvalidConfiguration, match=f"{field} is missing"):
        parse(remove=field)


REFUSED = [
    ({"architectures": ["MixtralForCausalLM"]}, "'MixtralForCausalLM' is not supported.*Llama"),
    ({"architectures": [], "model_type": "gpt2"}, "'gpt2' is not supported"),
    ({"architectures": "LlamaForCausalLM"}, "architectures .* expected a list"),
    ({"num_local_experts": 8}, "mixtures of experts"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; expected silu"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic', which is not supported"),
    ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
    ({"rope_scaling": 3}, "rope_scaling is 3; expected an object"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differs by layer type"),
    ({"rope_theta": 1.0}, "rope_theta is 1; expected more than 1"),
    ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
    ({"head_dim": 7}, "7 dimensions of a head of 7"),
    ({"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor"),
    ({"num_attention_heads": 5}, "hidden_size is 64; expected a multiple"),
    ({"vocab_size": "many"}, "vocab_size is 'many'; expected a positive whole number"),
    ({"vocab_size": True}, "vocab_size is True"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; expected true or false"),
    ({"dtype": 16}, "dtype is 16; expected a text"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_refused_in_one_line(changes, message):
    with pytest.raises(InvalidConfiguration, match=message) as refusal:
        parse(**changes)
    assert "\n" not in str(refusal.value)


def test_layer_types_must_fit():
    with pytest.raises(InvalidConfiguration, match="layer_types"):
        qwen(use_sliding_window=True, layer_types=["full_attention"])


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_file_that_is_no_object(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InvalidConfiguration, match=r"config\.json"):
        read_model_spec(tmp_path)


def test_reads_what_transformers_writes(tmp_path):
    config = LlamaConfig(**LLAMA, rope_theta=77.0)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    spec = read_model_spec(tmp_path)
    assert spec.rope.theta == 77.0
    assert "rope_parameters" in json.loads((tmp_path / "config.json").read_text())


def test_parameters_are_counted_as_transformers_counts_them(checkpoints):
    for name in ("llama2", "llama_biased", "llama3_tied", "qwen2", "qwen3", "qwen3_tied"):
        checkpoint = checkpoints(name)
        expected = sum(parameter.numel() for parameter in checkpoint.oracle.parameters())
        assert read_model_spec(checkpoint.directory).parameters == expected


def test_kv_elements():
    assert parse(num_key_value_heads=2).kv_elements_per_token == 3 * 2 * 2 * 16
