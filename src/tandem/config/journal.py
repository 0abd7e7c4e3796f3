"""The cluster file as it stands in a gateway's journal, without keys and addresses but with the
files that it names; and back."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from tandem.config.cluster.file import Cluster, cluster_of
from tandem.config.cluster.tree import node_at, override, parse, set_text, spelled
from tandem.config.hardware.worker import DEVICES
from tandem.config.options import OF_GATEWAYS
from tandem.facts.errors import InvalidConfiguration

MODEL = "model"
_CONFIG = "config.json"
# What decisions and costs depend on. All else stays where it is: keys, addresses, passwords.
KEPT_KEYS = {
    "": {
        "model", "pools", "block_size", "max_model_len", "network", "tiers", "policies", "planning",
        "health", "queue", "classes", "tenants", "slo", "seed", "serve", "limits", "gateways",
        "drafts",
    },
    "tenants": {
        "name", "service_class", "weight", "kv_share", "may_use", "pin_share", "limits",
    },
    "classes": {
        "name", "priority", "reserved", "slo", "deadline", "default", "client_may_raise",
        "client_may_lower", "degrade", "pools",
    },
    "pools": {
        "name", "device", "role", "model", "count", "min_count", "max_count", "tensor_parallel",
        "pipeline_parallel", "dtype", "kv_dtype", "max_num_seqs", "max_num_batched_tokens",
        "memory_utilization", "startup", "price_usd_per_hour", "price", "time_model", "serve",
        "block_size", "all_reduce", "sequence_parallel",
    },
    "tiers": {
        "host", "disk", "remote", "pin_sessions", "longest_pin", "pin_share", "longest_pause",
        "learn_pauses",
    },
    "tiers.host": {"capacity", "bandwidth", "latency"},
    "tiers.disk": {"capacity", "bandwidth", "latency"},
    "tiers.remote": {"capacity", "bandwidth", "latency", "nodes", "replicas"},
}  # fmt: skip
_NOT_KEPT = {"serve": {spelled(option) for option in OF_GATEWAYS}}


def recorded_text(path: Path, tenant_label: Callable[[str], str]) -> tuple[str, dict[str, str]]:
    """What a journal keeps of the resolved cluster file at `path`, where tenants have their labels,
    and the texts of the files that it names: the model's configuration, datasheets and profiles.
    Raises `InvalidConfiguration`."""
    tree = parse(_read(path), str(path))
    _drop(tree, "")
    files: dict[str, str] = {}
    _take_in(tree, MODEL, files)
    pools, tenants = _entries(tree, "pools"), _entries(tree, "tenants")
    for pool in pools:
        _take_in(pool, MODEL, files)
        if not (DEVICES / f"{_text_at(pool, 'device')}.yaml").exists():
            _take_in(pool, "device", files)
        time_model = node_at(pool, "time_model")
        if isinstance(time_model, yaml.MappingNode):
            _take_in(time_model, "path", files)
    for tenant in tenants:
        set_text(tenant, "name", tenant_label(_text_at(tenant, "name")))
    return yaml.serialize(tree, allow_unicode=True), files


def recorded_cluster(
    text: str, files: Mapping[str, str], folder: Path, settings: Sequence[str] = ()
) -> Cluster:
    """The cluster of a journal, with `--set` assignments applied; the files that it names are
    written to `folder`, and needed for as long as it is used. Raises `InvalidConfiguration`."""
    tree = parse(text, "the journal's cluster")
    models = {_text_at(node, MODEL) for node in (tree, *_entries(tree, "pools"))}
    for number, (name, content) in enumerate(files.items()):
        # Under the name that it had: a model is known by it.
        place = folder / str(number) / Path(name).name
        place.parent.mkdir(exist_ok=True)
        if name in models:
            # A model goes by the folder of its configuration.
            place.mkdir(exist_ok=True)
            (place / _CONFIG).write_text(content, encoding="utf-8")
        else:
            place.write_text(content, encoding="utf-8")
        _point_to(tree, name, str(place))
    for assignment in settings:
        override(tree, assignment)
    return cluster_of(tree, folder)


def _point_to(tree: yaml.MappingNode, name: str, place: str) -> None:
    """Wherever the file of this name is meant, it lies at `place` now."""
    if _text_at(tree, MODEL) == name:
        set_text(tree, MODEL, place)
    for pool in _entries(tree, "pools"):
        if _text_at(pool, MODEL) == name:
            set_text(pool, MODEL, place)
        if _text_at(pool, "device") == name:
            set_text(pool, "device", place)
        time_model = node_at(pool, "time_model")
        if isinstance(time_model, yaml.MappingNode) and _text_at(time_model, "path") == name:
            set_text(time_model, "path", place)


def _drop(node: yaml.MappingNode, place: str) -> None:
    """Leave out whatever is not to be kept, here and below."""
    kept, dropped = KEPT_KEYS.get(place), _NOT_KEPT.get(place, set())
    node.value = [
        (key, value)
        for key, value in node.value
        if (kept is None or spelled(key.value) in kept) and spelled(key.value) not in dropped
    ]
    for key, value in node.value:
        below = f"{place}.{spelled(key.value)}".lstrip(".")
        entries = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for entry in entries:
            if isinstance(entry, yaml.MappingNode):
                _drop(entry, below)


def _take_in(node: yaml.MappingNode, key: str, files: dict[str, str]) -> None:
    """Keep the file that stands under this key, if one does."""
    name = _text_at(node, key)
    path = Path(name).expanduser()
    if name and path.is_dir() and (path / _CONFIG).is_file():
        path = path / _CONFIG
    if name and path.is_file():
        files[name] = _read(path)


def _entries(tree: yaml.MappingNode, key: str) -> list[yaml.MappingNode]:
    node = node_at(tree, key)
    entries = node.value if isinstance(node, yaml.SequenceNode) else []
    return [entry for entry in entries if isinstance(entry, yaml.MappingNode)]


def _text_at(node: yaml.MappingNode, key: str) -> str:
    found = node_at(node, key)
    return str(found.value) if isinstance(found, yaml.ScalarNode) else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"cannot read {path}: {error}") from error
