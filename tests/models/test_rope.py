"""The rotary table against transformers, bit for bit where it matters."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import RopeSpec
from tandem.kernels.rotary import rotary_frequencies, rotary_table
from tandem.models.configuration import read_rope
from tandem.models.directory import Fields

ROPES = {
    "plain": {"rope_type": "default", "rope_theta": 10000.0},
    "large_theta": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "llama31": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    },
    "yarn_all_options": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.707,
        "truncate": False,
    },
    "yarn_attention_factor": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": 0.9,
    },
}


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_table_equals_transformers(name, head_dim):
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters=dict(ROPES[name]),
    )
    fields = Fields("config.json", {"rope_parameters": ROPES[name]})
    table = rotary_table(read_rope(fields, 131072), head_dim, 131072, torch.device("cpu"))
    positions = torch.tensor([[0, 1, 2, 63, 1000, 4095, 8192, 40_000, 131_071]])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    half = head_dim // 2
    torch.testing.assert_close(table.cos[positions[0]], cos[0, :, :half], atol=1e-6, rtol=0)
    torch.testing.assert_close(table.sin[positions[0]], sin[0, :, :half], atol=1e-6, rtol=0)


def test_partial_rotation_has_fewer_pairs():
    fields = Fields("config.json", {"partial_rotary_factor": 0.25})
    table = rotary_table(read_rope(fields, 16), 64, 16, torch.device("cpu"))
    assert table.cos.shape == table.sin.shape == (16, 8)
    assert table.cos.dtype is torch.float32


def test_factors_stand_for_the_scaling_that_they_were_made_of():
    plain = rotary_frequencies(RopeSpec(theta=500000.0), 64)[0]
    scaled = rotary_frequencies(read_rope(Fields("", {"rope_scaling": ROPES["llama31"]}), 8), 64)[0]
    factors = (plain / scaled).tolist()
    rope = {"rope_type": "factors", "factors": factors, "rope_theta": 500000.0}
    spec = read_rope(Fields("config.json", {"rope_scaling": rope}), 8)
    assert max(factors) == 8.0 and min(factors) == 1.0
    torch.testing.assert_close(rotary_frequencies(spec, 64)[0], scaled, atol=0, rtol=1e-6)


@pytest.mark.parametrize("factors", [7, ["1"], [1.0, 0.0], [float("inf")], [True]])
def test_factors_are_positive_numbers(factors):
    fields = Fields("config.json", {"rope_scaling": {"rope_type": "factors", "factors": factors}})
    with pytest.raises(InvalidConfiguration, match="expected a list of positive numbers"):
        read_rope(fields, 8)
