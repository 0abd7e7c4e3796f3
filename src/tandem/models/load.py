"""From the name of a model to a decoder that runs: finds the directory, checks it, reads it."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.kernels.collectives.contract import ALONE, Collectives
from tandem.kernels.faces import Kernels
from tandem.models.checkpoint import DummyWeights, SafetensorsWeights
from tandem.models.content import Weights
from tandem.models.decoder import Decoder
from tandem.models.parallel import WHOLE, Place, local_spec
from tandem.models.parameters import all_parts, decoder_parts
from tandem.models.weights import DecoderWeights, WeightForm, assemble_weights

LoadFormat = Literal["safetensors", "dummy"]

# Weights, configuration, chat templates and tokenizers; never code, never a pickle.
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
# Second copies of the weights, in the layout of their makers.
HUB_DUPLICATES = ["original/*", "consolidated*", "onnx/*"]

EMBEDDING_AS_HEAD = frozenset({"lm_head.weight"})


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to read and how to hold it. `dummy` takes random weights from `seed` and needs no file
    but config.json. Where it is known what the files hold (`weights`), it is seen to that this is
    what was read."""

    directory: Path
    form: WeightForm
    load_format: LoadFormat = "safetensors"
    seed: int = 0
    weights: Weights | None = None


def find_model(name: str, revision: str | None = None) -> Path:
    """The local directory of a model: `name` is one, or is fetched from the Hugging Face hub.

    Raises `InvalidConfiguration` when it is neither.
    """
    directory = Path(name).expanduser()
    if directory.is_dir():
        return directory
    if directory.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise InvalidConfiguration(
            f"model {name!r} is no directory; see the path for a typing slip"
        )
    # A third of a second that no process pays which finds its model in a directory.
    hub = importlib.import_module("huggingface_hub")
    try:
        found = hub.snapshot_download(
            name, revision=revision, allow_patterns=HUB_FILES, ignore_patterns=HUB_DUPLICATES
        )
    except (OSError, ValueError) as problem:
        reason = str(problem).strip().splitlines()[:1]
        raise InvalidConfiguration(
            f"model {name!r} is neither a directory nor to be had from the hub "
            f"({''.join(reason)}); give the path of a downloaded model"
        ) from problem
    return Path(found)


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


def _read(spec: ModelSpec, plan: LoadPlan, kernels: Kernels, place: Place) -> DecoderWeights:
    if plan.load_format == "dummy":
        dummy = DummyWeights(plan.seed)
        return assemble_weights(spec, dummy, plan.form, kernels.pack, place=place)
    ignored = EMBEDDING_AS_HEAD if spec.tied_embeddings else frozenset()
    with SafetensorsWeights(plan.directory) as checkpoint:
        checkpoint.check(all_parts(decoder_parts(spec)), ignored)
        weights = assemble_weights(spec, checkpoint, plan.form, kernels.pack, place=place)
    if plan.weights is not None:
        plan.weights.check_unchanged()
    return weights
