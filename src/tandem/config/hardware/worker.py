"""Hardware of one worker (model shape, devices, datasheet, measured tables or profile), and what
its steps and transfers cost in seconds."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import msgspec
import yaml

from tandem.config.environment import BUNDLED
from tandem.config.hardware.tables import load_operator_tables
from tandem.cost.device import DeviceSpec
from tandem.cost.fitted import FittedStepTime, from_fields
from tandem.cost.model_shape import ModelShape, model_shape
from tandem.cost.roofline import roofline
from tandem.cost.serving import serving_from_fields, transfer_from_fields
from tandem.cost.sharding import MemoryLimits, Sharding, kv_block_count, kv_bytes_per_token
from tandem.cost.worker import NO_SERVING_COST, LinkCost, ServingCost, StepTime, WorkerCost
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Tier
from tandem.gguf.names import is_gguf
from tandem.models.configuration import describe_model, read_config
from tandem.models.directory import checkpoint_path, model_label, read_fields

TimeModel = Literal["roofline", "tables", "profile"]
PROFILE_VERSION = 2
DEVICES = BUNDLED / "hardware" / "devices"
MODELS = BUNDLED / "hardware" / "models"


@dataclass(frozen=True, slots=True)
class WorkerHardware:
    """One worker: a model on `tensor_parallel` x `pipeline_parallel` devices of a kind.

    `model` is the name of a bundled shape or a path (a config.json or its directory), `device` the
    name of a bundled datasheet or the path of a YAML file. `tables` is the folder of measured
    operators, `profile` a file of `tandem calibrate`; `time_model` says which is asked.
    """

    model: str
    device: str
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    weight_precision: str = "bf16"
    kv_precision: str = "bf16"
    chunk_tokens: int = 2048
    block_size: int = 16
    time_model: TimeModel = "roofline"
    tables: str = ""
    profile: str = ""
    memory_utilisation: float = 0.9

    @property
    def devices(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def sharding(self) -> Sharding:
        return Sharding(
            self.tensor_parallel, self.pipeline_parallel, self.weight_precision, self.kv_precision
        )


def worker_cost(hardware: WorkerHardware) -> WorkerCost:
    """Step times by the chosen model, and links: a worker's devices move KV side by side. Raises
    `InvalidConfiguration` naming the field at fault."""
    if hardware.chunk_tokens < 1:
        raise InvalidConfiguration(f"chunk_tokens is {hardware.chunk_tokens}; expected 1 or more")
    shape, device = load_model_shape(hardware.model), load_device(hardware.device)
    links, latency, count = device.links, device.latency, hardware.devices
    network = LinkCost(
        count * links.network_bytes_per_s * device.efficiency.network, latency.network_s
    )
    tiers = {
        Tier.HOST: LinkCost(count * links.host_bytes_per_s, latency.operation_s),
        Tier.DISK: LinkCost(count * links.disk_bytes_per_s, latency.disk_s),
        Tier.REMOTE: network,
    }
    step_time = _step_time(hardware, shape, device)
    serving = NO_SERVING_COST
    if hardware.time_model == "profile":
        measured = load_profile(Path(hardware.profile))
        serving, network = measured.serving, measured.network or network
    return WorkerCost(
        step_time=step_time,
        kv_bytes_per_token=kv_bytes_per_token(shape, hardware.sharding),
        chunk_tokens=hardware.chunk_tokens,
        tiers=tiers,
        network=network,
        serving=serving,
    )


def kv_blocks(hardware: WorkerHardware) -> int:
    """KV blocks that fit beside the weights. Raises `InvalidConfiguration` if none does."""
    limits = MemoryLimits(hardware.block_size, hardware.chunk_tokens, hardware.memory_utilisation)
    shape, device = load_model_shape(hardware.model), load_device(hardware.device)
    return kv_block_count(shape, device, hardware.sharding, limits)


@cache
def load_device(name: str) -> DeviceSpec:
    """A bundled datasheet by its name, or one of the user's by its path."""
    path = DEVICES / f"{name}.yaml"
    if not path.exists():
        path = Path(name)
    if not path.is_file():
        raise InvalidConfiguration(
            f"device: there is no {name!r}; expected the path of a YAML file or one of "
            f"{', '.join(bundled_devices())}"
        )
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), DeviceSpec)
    except (msgspec.ValidationError, yaml.YAMLError) as problem:
        raise InvalidConfiguration(f"{path}: {problem}") from problem


@cache
def load_model_shape(name: str) -> ModelShape:
    """A bundled shape by its name, or that of a config.json, under whatever name, of the directory
    that holds it, or of a GGUF file. Raises `InvalidConfiguration`."""
    if Path(name).suffix == ".safetensors" or is_gguf(Path(name)):
        name = checkpoint_path(name)
    places = (
        MODELS / f"{name}.json",
        BUNDLED / name / "config.json",
        Path(name) / "config.json",
        Path(name),
    )
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise InvalidConfiguration(
            f"model: there is no {name!r}; expected the path of a config.json or a GGUF file, or "
            f"one of {', '.join(bundled_models())}"
        )
    label = name if path.parent == MODELS else model_label(name)
    config = read_config(path) if is_gguf(path) else read_fields(path)
    return model_shape(describe_model(replace(config, label=label)), label)


def bundled_devices() -> list[str]:
    return sorted(path.stem for path in DEVICES.glob("*.yaml"))


def bundled_models() -> list[str]:
    # Speculative heads have a config.json, too, and no tokenizer of their own.
    weights = [path.parent.name for path in BUNDLED.glob("*/tokenizer.json")]
    return sorted([path.stem for path in MODELS.glob("*.json")] + weights)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a machine was measured to do: `step_time` in the server, what serving costs besides, and
    KV transfers between workers (None: they were not measured)."""

    step_time: FittedStepTime
    serving: ServingCost
    network: LinkCost | None


def load_profile(path: Path) -> Profile:
    """A file of `tandem calibrate`; one of earlier versions knows the engine's steps alone. Raises
    `InvalidConfiguration`."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InvalidConfiguration(f"{path} cannot be read: {problem}") from problem
    if not isinstance(values, dict):
        raise InvalidConfiguration(f"{path} holds no JSON object")
    version = values.get("version", 1)
    if version not in range(1, PROFILE_VERSION + 1):
        raise InvalidConfiguration(
            f"{path}: version is {version!r}; expected {PROFILE_VERSION} at most: make it anew "
            "with `tandem calibrate`"
        )
    fitted = values.get("fitted")
    if not isinstance(fitted, dict):
        raise InvalidConfiguration(f"{path}: fitted is missing; make it with `tandem calibrate`")
    # The engine alone, where nothing else was measured.
    steps = "served" if "served" in values else "fitted"
    step_time = from_fields(_section(values, steps, path), f"{path}: {steps}")
    serving = serving_from_fields(_section(values, "serving", path), f"{path}: serving")
    network = None
    if "kv_transfer" in values:
        label = f"{path}: kv_transfer"
        network = transfer_from_fields(_section(values, "kv_transfer", path), label)
    return Profile(step_time, serving, network)


def _section(values: dict[str, object], name: str, path: Path) -> dict[str, object]:
    section = values.get(name, {})
    if not isinstance(section, dict):
        raise InvalidConfiguration(f"{path}: {name} is {section!r}; expected an object")
    return section


def _step_time(hardware: WorkerHardware, shape: ModelShape, device: DeviceSpec) -> StepTime:
    kind = hardware.time_model
    if kind not in get_args(TimeModel):
        raise InvalidConfiguration(
            f"time_model is {kind!r}; expected one of {', '.join(get_args(TimeModel))}"
        )
    if kind == "roofline":
        return roofline(shape, device, hardware.sharding)
    source, expected = {
        "tables": (hardware.tables, "the folder of measured operators"),
        "profile": (hardware.profile, "the file that `tandem calibrate` wrote"),
    }[kind]
    if not source:
        raise InvalidConfiguration(f"time_model {kind} needs {kind}: {expected}")
    if kind == "tables":
        return load_operator_tables(Path(source), shape, device, hardware.sharding)
    return load_profile(Path(source)).step_time
