"""From the directory of a model to a decoder that runs, and from that of an adapter to its weights:
checks the files, reads them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from tandem.facts.adapter import Adapter
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.gguf.names import is_gguf
from tandem.kernels.collectives.contract import ALONE, Collectives
from tandem.kernels.faces import Kernels
from tandem.models.adapter_weights import AdapterWeights, assemble_adapter
from tandem.models.adapters import read_adapter
from tandem.models.checkpoint import DummyWeights, SafetensorsWeights
from tandem.models.content import Weights
from tandem.models.decoder import Decoder
from tandem.models.formats.choose import read_quantization
from tandem.models.formats.weights import QuantizedWeights
from tandem.models.gguf.weights import GgufWeights
from tandem.models.parallel import WHOLE, Place, local_spec
from tandem.models.parameters import all_parts, decoder_parts
from tandem.models.weights import DecoderWeights, WeightForm, assemble_weights

LoadFormat = Literal["safetensors", "dummy"]

EMBEDDING_AS_HEAD = frozenset({"lm_head.weight"})


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to read, from the folder of a checkpoint or a GGUF file, and how to hold it. `dummy`
    takes random weights from `seed` and needs no file but config.json. Where it is known what the
    files hold (`weights`), it is seen to that this is what was read."""

    directory: Path
    form: WeightForm
    load_format: LoadFormat = "safetensors"
    seed: int = 0
    weights: Weights | None = None


def load_decoder(
    spec: ModelSpec,
    plan: LoadPlan,
    kernels: Kernels,
    *,
    place: Place = WHOLE,
    collectives: Collectives = ALONE,
) -> Decoder:
    """Reads the weights of `spec` as planned: all of them, or the share of one rank, whose tensor
    group is `collectives`. A caller that wants a shorter context replaces `spec.context_tokens`
    first.

    Raises `InvalidConfiguration` before reading any weight if the checkpoint does not fit `spec`,
    or `spec` cannot be cut for `place`; and after it if the files changed meanwhile.
    """
    share = local_spec(spec, place)
    weights = _read(spec, plan, kernels, place)
    return Decoder(share, weights, kernels, place=place, collectives=collectives)


def load_adapter(
    spec: ModelSpec,
    adapter: Adapter,
    kernels: Kernels,
    device: torch.device,
    *,
    place: Place = WHOLE,
) -> AdapterWeights:
    """The weights of an adapter of `spec`, or the share of one rank. Raises `InvalidConfiguration`
    when it does not fit `spec`, or what lies there is not that adapter any more."""
    files = read_adapter(Path(adapter.path), spec)
    if files.adapter.digest != adapter.digest:
        raise InvalidConfiguration(
            f"adapter {adapter.path} has changed since it was loaded under its name; unload that "
            "and load it again"
        )
    return assemble_adapter(spec, files, kernels, device, place=place)


def _read(spec: ModelSpec, plan: LoadPlan, kernels: Kernels, place: Place) -> DecoderWeights:
    if plan.load_format == "dummy":
        dummy = DummyWeights(plan.seed)
        return assemble_weights(spec, dummy, plan.form, kernels, place=place)
    ignored = EMBEDDING_AS_HEAD if spec.tied_embeddings else frozenset()
    parts = all_parts(decoder_parts(spec))
    if is_gguf(plan.directory):
        with GgufWeights(plan.directory) as stored:
            stored.check(parts, ignored)
            weights = assemble_weights(spec, stored, plan.form, kernels, place=place)
    else:
        with SafetensorsWeights(plan.directory) as checkpoint:
            found = read_quantization(plan.directory)
            source = checkpoint if found is None else QuantizedWeights(checkpoint, found.format)
            source.check(parts, ignored)
            weights = assemble_weights(spec, source, plan.form, kernels, place=place)
    if plan.weights is not None:
        plan.weights.check_unchanged()
    return weights
