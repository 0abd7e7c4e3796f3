"""Reads the folder of a low-rank adapter as PEFT writes it, checks that it fits a model, and names
it by its content.

Needs no torch: gateways ask, too. PEFT's own rules say which linears are adapted, and with which
rank and scaling (`peft.tuners.tuners_utils.check_target_module_exists`, `get_pattern_key`).
"""

import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, NoReturn

from tandem.facts.adapter import DIGEST_CHARS, Adapter
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.models.directory import Fields, read_fields
from tandem.models.footprint import read_header
from tandem.models.parameters import TensorPart, decoder_parts

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
ALL_LINEAR = "all-linear"
MOST_RANK = 1024
_ELEMENT_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
_TENSOR = re.compile(r"base_model\.model\.(?P<linear>.+)\.lora_(?P<matrix>[AB])\.weight")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_NAMES_SHOWN = 4
# Beside the two matrices of a linear, none of this can be served.
_UNSUPPORTED_FIELDS = {
    "use_dora": "DoRA",
    "modules_to_save": "modules that were trained whole",
    "trainable_token_indices": "trained token embeddings",
    "target_parameters": "adapted parameters that are no linear layers",
    "layer_replication": "replicated layers",
    "lora_bias": "trained biases",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal adapters",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "routed adapters",
    "fan_in_fan_out": "weights that are stored transposed",
    "megatron_config": "Megatron's layers",
}


@dataclass(frozen=True, slots=True)
class AdaptedLinear:
    """What is multiplied beside one linear: matrices of this rank, their product by `scaling`."""

    rank: int
    scaling: float


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter that fits its model. `linears` by name, as "model.layers.0.self_attn.q_proj";
    `data` is the safetensors file, of which the digest is."""

    adapter: Adapter
    linears: Mapping[str, AdaptedLinear]
    data: bytes

    @property
    def rank(self) -> int:
        """The highest."""
        return max(linear.rank for linear in self.linears.values())


def tensor_name(linear: str, matrix: str) -> str:
    """Under which A or B of a linear stands in the file."""
    return f"base_model.model.{linear}.lora_{matrix}.weight"


def read_adapter(directory: Path, spec: ModelSpec, most_rank: int = MOST_RANK) -> AdapterFiles:
    """Raises `InvalidConfiguration`, one line that names the file and what is wrong with it: it is
    not there, of another kind, for another model, or of a rank above `most_rank`."""
    if not directory.is_dir():
        raise InvalidConfiguration(
            f"adapter {directory} is no directory; give the folder with {CONFIG_NAME} in it"
        )
    config = read_fields(directory / CONFIG_NAME)
    path = directory / WEIGHTS_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InvalidConfiguration(
            f"{path} does not exist; an adapter in another format (.bin) must be saved as "
            "safetensors first"
        ) from None
    except OSError as problem:
        raise InvalidConfiguration(f"{path} cannot be read: {problem.strerror}") from problem
    known = {
        part.name.removesuffix(".weight"): part
        for layer in decoder_parts(spec).layers
        for fused in (layer.qkv, layer.attention_output, layer.gate_up, layer.down)
        for part in fused.weights
    }
    linears = _adapted_linears(config, known)
    for name, linear in linears.items():
        if linear.rank > most_rank:
            raise InvalidConfiguration(
                f"{directory}: {name} has rank {linear.rank}, more than the {most_rank} that are "
                "allowed; raise --max-lora-rank"
            )
    weight_bytes = _check_tensors(path, read_header(path, io.BytesIO(data)), linears, known)
    digest = _digest(linears, data)
    adapter = Adapter(digest, str(directory.absolute()), weight_bytes)
    return AdapterFiles(adapter, linears, data)


def _digest(linears: Mapping[str, AdaptedLinear], data: bytes) -> str:
    """Of what is computed: other fields of the configuration say nothing."""
    digest = blake2b(digest_size=DIGEST_CHARS // 2)
    for name in sorted(linears):
        digest.update(f"{name}\0{linears[name].rank}\0{linears[name].scaling!r}\0".encode())
    digest.update(sha256(data).digest())
    return digest.hexdigest()


def _adapted_linears(config: Fields, known: Mapping[str, TensorPart]) -> dict[str, AdaptedLinear]:
    """Which linears the configuration targets, in the order of the model."""
    if (kind := config.text("peft_type", "")) != "LORA":
        raise InvalidConfiguration(
            f"{config.label}: peft_type is {kind!r}; only LORA can be served"
        )
    for name, what in _UNSUPPORTED_FIELDS.items():
        if config.values.get(name):
            raise InvalidConfiguration(f"{config.label}: {name} is set; Tandem cannot serve {what}")
    if config.text("bias", "none") != "none":
        config.refuse("bias", "none; trained biases cannot be served")
    targeted = [name for name in known if _is_targeted(config, name)]
    if not targeted:
        config.refuse("target_modules", "some of the linear layers of this model")
    rank, alpha = config.integer("r", 8), config.number("lora_alpha", 8)
    ranks, alphas = _pattern(config, "rank_pattern"), _pattern(config, "alpha_pattern")
    rooted = config.flag("use_rslora", False)
    linears = {}
    for name in targeted:
        own_rank = _matching(config, ranks, name, rank)
        if not isinstance(own_rank, int) or own_rank < 1:
            config.refuse("rank_pattern", "ranks of 1 and more by names of layers")
        own_alpha = _matching(config, alphas, name, alpha)
        divisor = math.sqrt(own_rank) if rooted else own_rank
        linears[name] = AdaptedLinear(own_rank, own_alpha / divisor)
    return linears


def _is_targeted(config: Fields, name: str) -> bool:
    if config.has("exclude_modules") and _names(config, "exclude_modules", name):
        return False
    layers = config.values.get("layers_to_transform")
    if layers is not None and layers != []:
        wanted = layers if isinstance(layers, list) else [layers]
        found = _LAYER.match(name)
        if found is None or int(found[1]) not in wanted:
            return False
    return _names(config, "target_modules", name)


def _names(config: Fields, field: str, name: str) -> bool:
    """Whether this linear is among those that a field names: as a list of endings or a pattern."""
    value = config.values.get(field)
    if isinstance(value, str):
        if value == ALL_LINEAR:
            return True
        try:
            return re.fullmatch(value, name) is not None
        except re.error as problem:
            config.refuse(field, f"a regular expression ({problem})")
    return any(name == each or name.endswith(f".{each}") for each in config.texts(field))


def _pattern(config: Fields, field: str) -> Mapping[str, Any]:
    group = config.group(field)
    if group is None:
        return {}
    for value in group.values.values():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            config.refuse(field, "positive numbers by names of layers")
    return group.values


def _matching(config: Fields, pattern: Mapping[str, Any], name: str, default: float) -> Any:
    for key, value in pattern.items():
        try:
            if re.match(rf"(.*\.)?({key})$", name):
                return value
        except re.error as problem:
            raise InvalidConfiguration(
                f"{config.label}: the pattern {key!r} is no regular expression: {problem}"
            ) from problem
    return default


def _check_tensors(
    path: Path,
    header: Mapping[str, Mapping[str, Any]],
    linears: Mapping[str, AdaptedLinear],
    known: Mapping[str, TensorPart],
) -> int:
    """Whether the file holds what the configuration says, in the shapes of this model. Gives the
    bytes of its matrices."""
    wanted = {
        tensor_name(name, matrix): shape
        for name, linear in linears.items()
        for matrix, shape in _shapes(known[name], linear.rank)
    }
    found = {name: entry for name, entry in header.items() if name != "__metadata__"}
    if extra := sorted(set(found) - set(wanted)):
        _refuse_extra(path, extra)
    if missing := sorted(set(wanted) - set(found)):
        _refuse_names(path, "lacks", missing, f"{CONFIG_NAME} says that it is adapted")
    weight_bytes = 0
    for name, shape in wanted.items():
        entry = found[name]
        if tuple(entry["shape"]) != shape:
            raise InvalidConfiguration(
                f"{path}: {name} has shape {list(entry['shape'])}; expected {list(shape)} for this "
                "model: the adapter was trained for another one, or has another rank"
            )
        if (dtype := entry.get("dtype")) not in _ELEMENT_BYTES:
            raise InvalidConfiguration(
                f"{path}: {name} is stored as {dtype}; expected F32, BF16 or F16"
            )
        weight_bytes += math.prod(shape) * _ELEMENT_BYTES[dtype]
    return weight_bytes


def _shapes(part: TensorPart, rank: int) -> Iterator[tuple[str, tuple[int, int]]]:
    outputs, inputs = part.shape
    yield "A", (rank, inputs)
    yield "B", (outputs, rank)


def _refuse_extra(path: Path, extra: list[str]) -> NoReturn:
    unknown = [name for name in extra if not _TENSOR.fullmatch(name)]
    if unknown:
        _refuse_names(path, "holds", unknown, "only lora_A and lora_B of linear layers are served")
    _refuse_names(path, "holds", extra, f"this model or {CONFIG_NAME} has no such adapted layer")


def _refuse_names(path: Path, verb: str, names: list[str], why: str) -> NoReturn:
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    raise InvalidConfiguration(f"{path} {verb} {shown}{more}; {why}")
