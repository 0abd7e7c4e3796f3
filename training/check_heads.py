"""Checks an exported EAGLE head: the unrolled rounds of training against drafting as in serving.

    python training/check_heads.py MODEL_DIR HEAD_DIR

Serving keeps keys and values of the committed tokens and drafts one token after the other; this
does so plainly, by the tensors' names in the checkpoint, and compares every guessed feature.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from check import load_exported
from export_heads import load_head
from heads import EagleHead
from sample import held_out_tasks, prompt_text

ROUNDS = 4
TOLERANCE = 1e-4


class StepwiseHead:
    """The head's one layer, a token at a time."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        stored = load_file(folder / "model.safetensors")
        self.weights = {name: weight.float() for name, weight in stored.items()}
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def step(self, position: int, embedded_C: Tensor, feature_C: Tensor) -> Tensor:
        """The guessed feature of a position; its key and value join those before."""
        x = self.weights["fc.weight"] @ torch.cat((embedded_C, feature_C))
        q, k, v = (self._heads(f"self_attn.{name}_proj", x) for name in "qkv")
        self.keys.append(self._rotated(self._norm("self_attn.k_norm", k), position))
        self.values.append(v)
        q = self._rotated(self._norm("self_attn.q_norm", q), position)
        keys, values = torch.stack(self.keys), torch.stack(self.values)
        group = len(q) // keys.shape[1]
        mixed = []
        for i, query in enumerate(q):
            scores = keys[:, i // group] @ query / len(query) ** 0.5
            mixed.append(scores.softmax(0) @ values[:, i // group])
        x = x + self._layer("self_attn.o_proj") @ torch.cat(mixed)
        y = self._norm("post_attention_layernorm", x)
        gate, up = self._layer("mlp.gate_proj") @ y, self._layer("mlp.up_proj") @ y
        return x + self._layer("mlp.down_proj") @ (functional.silu(gate) * up)

    def forget(self, tokens: int) -> None:
        """The last `tokens` were drafts."""
        del self.keys[-tokens:], self.values[-tokens:]

    def _layer(self, name: str) -> Tensor:
        return self.weights[f"layers.0.{name}.weight"]

    def _heads(self, name: str, x: Tensor) -> Tensor:
        return (self._layer(name) @ x).view(-1, self.config["head_dim"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        mean = x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(mean + self.config["rms_norm_eps"]) * self._layer(name)

    def _rotated(self, x_HD: Tensor, position: int) -> Tensor:
        half = x_HD.shape[1] // 2
        angles = position * self.config["rope_theta"] ** -(torch.arange(half) / half)
        left, right = x_HD[:, :half], x_HD[:, half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((left * cos - right * sin, right * cos + left * sin), 1)


@torch.inference_mode()
def check(model_folder: Path, folder: Path) -> float:
    """The largest difference between two entries of a guessed feature."""
    model, head = load_exported(model_folder), load_head(folder)
    assert isinstance(head, EagleHead), f"{folder} is no EAGLE head"
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    (task,) = held_out_tasks(tokenizer, "arithmetic", 1, 1)
    text = prompt_text(task) + str(task.reference["content"])
    ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)
    embedded, features = model.embed_tokens(ids), model(ids[None])[0]
    rounds = head(embedded[None, 1:], features[None, :-1], ROUNDS)
    stepwise, worst = StepwiseHead(folder), 0.0
    for position in range(1, len(ids) - ROUNDS):
        feature = features[position - 1]
        for i, guesses in enumerate(rounds):
            feature = stepwise.step(position + i, embedded[position + i], feature)
            difference = feature - guesses[0, position + i - 1]
            worst = max(worst, float(difference.abs().max()))
        stepwise.forget(ROUNDS - 1)
    return worst


if __name__ == "__main__":
    difference = check(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"largest difference of a feature's entry: {difference:.1e}")
    assert difference < TOLERANCE
