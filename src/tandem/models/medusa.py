"""Medusa heads: small layers beside a model's own head, one for each further token.

They are read as vLLM and the projects around Medusa write them: `blocks.{i}.layers.{j}` of one
residual layer, without heads of their own (`original_lm_head`).
Axes: D rows, H heads, C hidden.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.kernels.faces import Kernels
from tandem.kernels.packed import FLOAT_STORAGE, PackedLinear
from tandem.models.checkpoint import SafetensorsWeights
from tandem.models.directory import Fields
from tandem.models.parameters import TensorPart
from tandem.models.weights import WeightForm


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """Head i guesses the token i + 1 places behind the one that the model itself draws. `layers`
    are those of all heads, one below the other: [H C, C]."""

    layers: PackedLinear
    kernels: Kernels

    @property
    def count(self) -> int:
        return self.layers.out_features // self.layers.in_features

    def states(self, normed_DC: Tensor, heads: int) -> Tensor:
        """[D * heads, C], for the model's own head, from its normed hidden states: the first so
        many heads of each row, row after row."""
        hidden = normed_DC.shape[1]
        layer = self.kernels.linear(normed_DC, self.layers)[:, : heads * hidden]
        states = normed_DC[:, None] + functional.silu(layer).view(-1, heads, hidden)
        return states.reshape(-1, hidden)


def load_medusa(
    directory: Path, config: Fields, spec: ModelSpec, form: WeightForm, kernels: Kernels
) -> MedusaHeads:
    """The heads in a directory whose config.json is `config`, for a model of `spec`. Raises
    `InvalidConfiguration` where they are of another kind or for another model."""
    hidden = config.integer("hidden_size")
    if hidden != spec.hidden_features:
        raise InvalidConfiguration(
            f"{directory}: heads for a model of {hidden} hidden features; this one has "
            f"{spec.hidden_features}"
        )
    if config.integer("num_hidden_layers", 1) != 1 or not config.flag("original_lm_head", False):
        raise InvalidConfiguration(
            f"{directory}: expected heads of one layer that use the model's own output head "
            "(num_hidden_layers 1, original_lm_head true)"
        )
    with SafetensorsWeights(directory) as checkpoint:
        names = [f"blocks.{head}.layers.0" for head in range(config.integer("num_heads"))]
        of_weights = [TensorPart(f"{name}.weight", (hidden, hidden)) for name in names]
        of_biases = [TensorPart(f"{name}.bias", (hidden,)) for name in names]
        checkpoint.check([*of_weights, *of_biases], frozenset())
        dtype = FLOAT_STORAGE.get(form.storage, torch.float32)
        weights = [checkpoint.read(part).to(form.device, dtype) for part in of_weights]
        biases = [checkpoint.read(part).to(form.device, form.compute) for part in of_biases]
    layers = kernels.pack(torch.cat(weights), torch.cat(biases), form.storage)
    return MedusaHeads(layers, kernels)
