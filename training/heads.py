"""Speculative heads: small networks that foresee tokens from the main model's last features.

A feature is the hidden state after the last norm; both kinds share the model's tied embedding as
their output layer, so their own weights are under one megabyte.
"""

# B rows, T tokens, C hidden, H query heads, D head dim

import torch
from torch import Tensor, nn
from torch.nn import functional

from model import Attention, FeedForward, Norm, Shape, rotary_tables

# Of one round of an unrolled head, each [B, H, T, D].
KeysValues = tuple[Tensor, Tensor]

MEDUSA_HEADS = 4
EAGLE = Shape(layers=1, hidden=256, ffn=192)
# The embedding's entries are about a tenth of a feature's; fc weighs both alike at the start.
TOKEN_SCALE, FEATURE_SCALE = 5.0, 0.5


class MedusaBlock(nn.Module):
    """One head: a feature moved to where the model would be some tokens later."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(hidden, hidden)])
        # From zero a head begins by repeating the model's own next token.
        for weight in self.parameters():
            nn.init.zeros_(weight)

    def forward(self, feature: Tensor) -> Tensor:
        for layer in self.layers:
            feature = feature + functional.silu(layer(feature))
        return feature


class MedusaHeads(nn.Module):
    """Medusa (Cai et al. 2024, arXiv 2401.10774): heads that do not see each other's tokens.

    Head i, from 0, foresees the token i + 1 places after the one that the model itself predicts
    from the same feature.
    """

    def __init__(self, hidden: int = EAGLE.hidden, heads: int = MEDUSA_HEADS) -> None:
        super().__init__()
        self.hidden = hidden
        self.blocks = nn.ModuleList(MedusaBlock(hidden) for _ in range(heads))

    def forward(self, feature: Tensor) -> list[Tensor]:
        """The features whose logits are the heads' guesses."""
        return [block(feature) for block in self.blocks]


class EagleLayer(nn.Module):
    """A decoder layer of the model's kind, without a norm before its attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden, shape.norm_epsilon)
        self.mlp = FeedForward(shape)

    def forward(
        self,
        x_BTC: Tensor,
        cos_TD: Tensor,
        sin_TD: Tensor,
        rounds: list[KeysValues],
        start: int = 0,
    ) -> Tensor:
        """What the layer gives from the token at `start` on; `rounds` holds keys and values of the
        rounds before, and gains this one's."""
        q, k, v = self.self_attn.projected(x_BTC, cos_TD, sin_TD)
        rounds.append((self.self_attn.for_queries(k), self.self_attn.for_queries(v)))
        mixed = unrolled_attention(q[:, :, start:], rounds)
        x = x_BTC[:, start:] + self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class EagleHead(nn.Module):
    """EAGLE (Li et al. 2024, arXiv 2401.15077): a layer that continues the features themselves.

    At position p it reads the embedding of token p and the feature of p - 1, and gives a guess of
    the feature of p, whose logits foresee token p + 1. Fed with its own guesses and the tokens
    drawn from them it goes on for as long as wanted.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape = EAGLE) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.layers = nn.ModuleList([EagleLayer(shape)])
        cos, sin = rotary_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                out = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 if out else shape.hidden**-0.5)
        with torch.no_grad():
            self.fc.weight[:, : shape.hidden] *= TOKEN_SCALE
            self.fc.weight[:, shape.hidden :] *= FEATURE_SCALE

    def forward(
        self, embedded_BTC: Tensor, features_BTC: Tensor, rounds: int, start: int = 0
    ) -> list[Tensor]:
        """Guesses of the features, [rows, tokens - start, hidden], one for each of `rounds`.

        `embedded` are the tokens at positions 1 to T and `features` the model's at 0 to T - 1;
        the first guess is that of position 1 + start.
        The first round's guess at a position rests on the model's features alone; the n-th's on
        n - 1 of the head's own before it, as the n-th draft of a step. Where not that many are
        before a position, its guess means nothing. (Trained so by HASS, Zhang et al. 2024,
        arXiv 2408.15766, and EAGLE-3, Li et al. 2025, arXiv 2503.01840.)
        """
        end = embedded_BTC.shape[1] + 1
        x = self.fc(torch.cat((embedded_BTC, features_BTC), -1))
        past: list[KeysValues] = []
        guesses = [self.layers[0](x, self.cos[1:end], self.sin[1:end], past, start)]
        cos, sin = self.cos[1 + start : end], self.sin[1 + start : end]
        while len(guesses) < rounds:
            own = later(guesses[-1], 1, 1)
            x = self.fc(torch.cat((embedded_BTC[:, start:], own), -1))
            guesses.append(self.layers[0](x, cos, sin, past))
        return guesses


Head = MedusaHeads | EagleHead


def unrolled_attention(q_BHTD: Tensor, rounds: list[KeysValues]) -> Tensor:
    """Attention of the last round: over the first round's keys up to where the head's own guesses
    begin, then over one key of each later round. Queries and later rounds may be there for the
    last of the first round's tokens only."""
    keys, values = rounds[0]
    asked, tokens = q_BHTD.shape[2], keys.shape[2]
    seen = torch.ones(asked, tokens, dtype=torch.bool).tril(tokens - asked + 1 - len(rounds))
    if len(rounds) == 1:
        return functional.scaled_dot_product_attention(q_BHTD, keys, values, attn_mask=seen)
    q = q_BHTD * q_BHTD.shape[3] ** -0.5
    scores = [(q @ keys.transpose(2, 3)).masked_fill(~seen, -torch.inf)]
    own_values = []
    for places, (key, value) in zip(range(len(rounds) - 2, -1, -1), rounds[1:], strict=True):
        scores.append((q * later(key, places, 2)).sum(-1, keepdim=True))
        own_values.append(later(value, places, 2))
    weights = torch.cat(scores, -1).float().softmax(-1).to(q.dtype)
    out = weights[..., :tokens] @ values
    for i, value in enumerate(own_values, tokens):
        out = out + weights[..., i, None] * value
    return out


def later(x: Tensor, places: int, dim: int) -> Tensor:
    """Each entry moved to a later position, zeros before the first."""
    if places == 0:
        return x
    kept = x.narrow(dim, 0, x.shape[dim] - places)
    return torch.cat((torch.zeros_like(x.narrow(dim, 0, places)), kept), dim)
