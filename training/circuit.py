"""A start for copying: heads that look a few tokens back, and heads that match what those saw.

A transformer finds what followed a word earlier with two heads in a row (Olsson et al. 2022,
induction heads): one tells each position which words came before it, the next compares. Neither is
of use without the other, so from random weights they take most of a short training to appear.
Here they are there from the start, roughly, and training does the rest.
"""

import torch
from model import Decoder
from torch import Tensor

# How the score of a neighbour head spreads over the rotary frequencies, fastest first: mostly the
# fast ones, which tell one step from two, and some slow ones, which tell near from far.
_ENERGY = (0.5, 0.25, 0.15, 0.1)
_NEIGHBOURS = 4
_SHARPNESS = 1.7
# The slow half of the rotary pairs barely turns within the context: what is matched goes there.
_CODE_GAIN = 3.0


@torch.no_grad()
def add_copying_circuit(model: Decoder) -> None:
    """Sets the first four heads of the first layer and the first six of the second."""
    size = float(model.embed_tokens.weight.square().mean().sqrt())
    # Equal for every token, so it changes no probability, and it lets a head see position alone.
    model.embed_tokens.weight[:, 0] = 4 * size
    basis = torch.linalg.qr(torch.randn(model.shape.hidden, model.shape.hidden)).Q
    basis[0] = 0
    codes = _add_neighbour_heads(model, basis, size)
    _add_matching_heads(model, basis, codes)


def _add_neighbour_heads(model: Decoder, basis: Tensor, size: float) -> list[Tensor]:
    """Heads that look one, two, ... tokens back; where each writes its 32 numbers a token."""
    shape, layer = model.shape, model.layers[0]
    attention, d, half = layer.self_attn, shape.head_dim, shape.head_dim // 2
    group = shape.query_heads // shape.kv_heads
    layer.input_layernorm.weight[0] = 1.0
    attention.q_norm.weight.fill_(_SHARPNESS)
    attention.k_norm.weight.fill_(_SHARPNESS)
    energy = torch.tensor(_ENERGY).sqrt()
    frequency = shape.rope_theta ** -(torch.arange(len(energy)) * 2 / d)
    value = basis[:, -d:].T
    codes = []
    for head in range(_NEIGHBOURS):
        rows, kv_rows = slice(head * d, (head + 1) * d), slice(head // group * d, (head // group + 1) * d)
        angle = -(head + 1) * frequency
        attention.q_proj.weight[rows] = 0
        attention.k_proj.weight[kv_rows] = 0
        for pair in range(len(energy)):
            attention.q_proj.weight[rows][pair, 0] = 2 * energy[pair] * angle[pair].cos()
            attention.q_proj.weight[rows][half + pair, 0] = 2 * energy[pair] * angle[pair].sin()
            attention.k_proj.weight[kv_rows][pair, 0] = 2 * energy[pair]
        attention.v_proj.weight[kv_rows] = value
        codes.append(basis[:, rows])
        attention.o_proj.weight[:, rows] = _CODE_GAIN * size * codes[-1]
    return codes


def _add_matching_heads(model: Decoder, basis: Tensor, codes: list[Tensor]) -> None:
    """Heads whose query is words just before here and whose key is words before there."""
    shape, layer = model.shape, model.layers[1]
    attention, d = layer.self_attn, shape.head_dim
    group = shape.query_heads // shape.kv_heads
    attention.q_norm.weight.fill_(_SHARPNESS)
    attention.k_norm.weight.fill_(_SHARPNESS)
    one, two, three, _ = codes
    # After "name is" the value stands where the same two words are one step further back; in a
    # repeated text the next word stands where this word is one step back.
    own = basis[:, -d:]
    matches = (((one, two), (two, three)), ((one, two), (two, three)), ((own, one), (one, two)))
    for kv_head, pairs in enumerate(matches):
        rows = slice(kv_head * d, (kv_head + 1) * d)
        query, key = torch.zeros(d, shape.hidden), torch.zeros(d, shape.hidden)
        for here, there in pairs:
            mix = torch.randn(d, d) / d**0.5
            mix[: d // 4] = 0
            mix[d // 2 : 3 * d // 4] = 0
            query += mix @ here.T
            key += mix @ there.T
        attention.k_proj.weight[rows] = key
        # Read what the token is, not what stood before it.
        free = basis[:, d * (_NEIGHBOURS + kv_head % 4) : d * (_NEIGHBOURS + kv_head % 4 + 1)]
        attention.v_proj.weight[rows] = free.T
        for head in range(kv_head * group, (kv_head + 1) * group):
            attention.q_proj.weight[head * d : (head + 1) * d] = query
            attention.o_proj.weight[:, head * d : (head + 1) * d] = 0.5 * free
