"""The bundled architecture in plain torch: Qwen3 with tied embeddings, names as in its checkpoints.

Training needs only dense causal attention and losses at a few positions, so this is shorter than
the serving model and independent of it: the two agree or a test fails.
"""

# B rows, T tokens, N picked positions, C hidden, H query heads, D head dim

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    layers: int
    hidden: int
    ffn: int
    query_heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    vocabulary: int = 2560
    rope_theta: float = 1_000_000.0
    norm_epsilon: float = 1e-6
    context_tokens: int = 8192


MAIN = Shape(layers=4, hidden=256, ffn=640)
DRAFT = Shape(layers=2, hidden=128, ffn=320, query_heads=4)


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.epsilon)
        return (y * self.weight).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        c, d = shape.hidden, shape.head_dim
        self.q_proj = nn.Linear(c, shape.query_heads * d, bias=False)
        self.k_proj = nn.Linear(c, shape.kv_heads * d, bias=False)
        self.v_proj = nn.Linear(c, shape.kv_heads * d, bias=False)
        self.o_proj = nn.Linear(shape.query_heads * d, c, bias=False)
        self.q_norm = Norm(d, shape.norm_epsilon)
        self.k_norm = Norm(d, shape.norm_epsilon)

    def forward(
        self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor, past: list[Tensor] | None
    ) -> Tensor:
        """`past`, where given, holds keys and values of earlier tokens and is extended in place."""
        b, t, _ = x_BTC.shape
        q, k, v = self.projected(x_BTC, cos_TD, sin_TD)
        if past is not None:
            past[:] = (
                [torch.cat((old, new), 2) for old, new in zip(past, (k, v), strict=True)]
                if past
                else [k, v]
            )
            k, v = past
        k, v = self.for_queries(k), self.for_queries(v)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).reshape(b, t, -1))
        return mixed

    def projected(
        self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [rows, heads, tokens, head dim], rotated."""
        b, t, _ = x_BTC.shape
        s = self.shape
        q = self.q_norm(self.q_proj(x_BTC).view(b, t, s.query_heads, s.head_dim))
        k = self.k_norm(self.k_proj(x_BTC).view(b, t, s.kv_heads, s.head_dim))
        v = self.v_proj(x_BTC).view(b, t, s.kv_heads, s.head_dim)
        q, k = rotate(q, cos_TD, sin_TD), rotate(k, cos_TD, sin_TD)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def for_queries(self, x_BKTD: Tensor) -> Tensor:
        """Keys or values once a query head, by hand: the grouped path of SDPA is slow on a CPU."""
        group = self.shape.query_heads // self.shape.kv_heads
        return x_BKTD.repeat_interleave(group, 1) if group > 1 else x_BKTD


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.norm_epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden, shape.norm_epsilon)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: list[Tensor] | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Embedding, layers, last norm; logits use the embedding again."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.norm_epsilon)
        cos, sin = rotary_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                out = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(
                    weight,
                    std=0.02 / (2 * shape.layers) ** 0.5
                    if out
                    else 0.02
                    if "embed" in name
                    else shape.hidden**-0.5,
                )

    def forward(self, ids_BT: Tensor, past: list[list[Tensor]] | None = None) -> Tensor:
        """Hidden states after the last norm."""
        start = past[0][0].shape[2] if past and past[0] else 0
        span = slice(start, start + ids_BT.shape[1])
        x: Tensor = self.embed_tokens(ids_BT)
        for i, layer in enumerate(self.layers):
            x = layer(x, self.cos[span], self.sin[span], past[i] if past else None)
        out: Tensor = self.norm(x)
        return out

    def logits(self, hidden_NC: Tensor) -> Tensor:
        return functional.linear(hidden_NC, self.embed_tokens.weight)


def rotary_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """cos and sin of every position, halves repeated as in Qwen."""
    steps = torch.arange(0, shape.head_dim, 2).float() / shape.head_dim
    angles = torch.outer(torch.arange(shape.context_tokens).float(), shape.rope_theta**-steps)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x_BTHD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    left, right = x_BTHD.chunk(2, -1)
    cos, sin = cos_TD.to(x_BTHD.dtype)[:, None], sin_TD.to(x_BTHD.dtype)[:, None]
    return x_BTHD * cos + torch.cat((-right, left), -1) * sin
