"""A cluster file as a live cluster uses it: what only the simulator can do is refused, gateways and
workers get their options, and each process its part of the configuration.

Gateways read this too, so nothing in here may import torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from tandem.config.cluster.file import Cluster, cluster_of, find_cluster, name_problem, read_tree
from tandem.config.cluster.keys import without_secrets
from tandem.config.cluster.requests import JournalConfig
from tandem.config.cluster.tiers import pool_nodes, refused_tiers, with_folders
from tandem.config.cluster.tree import RefusedAt, mistake, node_at, set_text, spelled
from tandem.config.cluster.workers import PoolConfig
from tandem.config.environment import BUNDLED, BUNDLED_MODEL
from tandem.config.hardware.worker import load_device
from tandem.config.options import OF_GATEWAYS, ServeOptions, parse_bytes, read_options
from tandem.facts.errors import InvalidConfiguration
from tandem.models.directory import checkpoint_path

# Options that a pool calls otherwise.
_KEY_OF_A_POOL = {"kv-cache-dtype": "kv_dtype", "gpu-memory-utilization": "memory_utilization"}
STORED = ("auto", "float32", "bfloat16", "float16")
KV_STORED = (*STORED, "int8")
QUANTISED = ("int8", "int4")
# More processes on one machine than this are a slip.
MOST_PROCESSES = 512


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A cluster file that a live cluster can be made of, and its text with all overrides."""

    cluster: Cluster
    tree: yaml.MappingNode

    def text(self, model: str, pool_models: Mapping[str, str] | None = None) -> str:
        """A file that says the same with the model at this path, and those of pools at these."""
        set_text(self.tree, "model", model)
        names = [pool.name for pool in self.cluster.pools]
        for pool, own in (pool_models or {}).items():
            entry = node_at(self.tree, f"pools.{names.index(pool)}")
            assert isinstance(entry, yaml.MappingNode)
            set_text(entry, "model", own)
        return yaml.serialize(self.tree, allow_unicode=True)


def read_live_cluster(name: str, overrides: Sequence[str] = ()) -> LiveFile:
    """Raises `InvalidConfiguration` with file, line and remedy, also for what only the simulator
    can do."""
    return checked(read_tree(name, overrides), find_cluster(name).parent)


def checked(tree: yaml.MappingNode, folder: Path) -> LiveFile:
    """The same for the tree of a file in `folder`."""
    cluster = cluster_of(tree, folder)
    for place, problem in _refusals(cluster):
        raise mistake(node_at(tree, place), problem)
    for pool in cluster.pools:
        try:
            on_cpu(pool)
        except InvalidConfiguration as error:
            raise mistake(node_at(tree, pool_place(cluster, pool, "device")), str(error)) from error
        try:
            worker_options(cluster, pool)
        except RefusedAt as error:
            raise mistake(node_at(tree, error.place), str(error)) from error
    return LiveFile(cluster, tree)


def worker_options(cluster: Cluster, pool: PoolConfig) -> ServeOptions:
    """Of one worker, before machine facts. Raises `RefusedAt`."""
    quantised = pool.dtype in QUANTISED
    dtype = "auto" if quantised else pool.dtype
    values: dict[str, object] = {
        "dtype": dtype,
        "quantization": pool.dtype if quantised else "auto",
        "kv-cache-dtype": pool.kv_dtype,
        "max-num-seqs": pool.max_num_seqs,
        "max-num-batched-tokens": pool.max_num_batched_tokens,
        "gpu-memory-utilization": pool.memory_utilization,
        "device": "cpu" if on_cpu(pool) else "cuda",
        "block-size": pool.block_size or cluster.block_size,
        "max-model-len": cluster.max_model_len,
    }
    values |= {key: value for key, value in cluster.serve.items() if key not in OF_GATEWAYS}
    values |= pool.serve
    for option, value in values.items():
        _check_option(cluster, pool, option, value)
    options = read_options(None, values)
    if options.max_num_batched_tokens < options.max_num_seqs:
        raise RefusedAt(
            _place_of(cluster, pool, "max-num-batched-tokens"),
            f"pool {pool.name}: max_num_batched_tokens ({options.max_num_batched_tokens}) must be "
            f"at least max_num_seqs ({options.max_num_seqs})",
        )
    return options


def _check_option(cluster: Cluster, pool: PoolConfig, option: str, value: object) -> None:
    try:
        options = read_options(None, {option: value})
        if option == "kv-cache-memory" and options.kv_cache_memory != "auto":
            parse_bytes(options.kv_cache_memory, option)
    except InvalidConfiguration as error:
        raise RefusedAt(_place_of(cluster, pool, option), str(error)) from error


def _place_of(cluster: Cluster, pool: PoolConfig, option: str) -> str:
    """Where the file says what a worker's option is."""
    key = spelled(option)
    if option in pool.serve:
        return pool_place(cluster, pool, f"serve.{key}")
    if option in cluster.serve:
        return f"serve.{key}"
    if option == "max-model-len" or (option == "block-size" and not pool.block_size):
        return key
    return pool_place(cluster, pool, _KEY_OF_A_POOL.get(option, key))


def pool_place(cluster: Cluster, pool: PoolConfig, key: str) -> str:
    """The path of a pool's key; its name may hold dots, so the pool goes by its number."""
    return f"pools.{[each.name for each in cluster.pools].index(pool.name)}.{key}"


def gateway_options(cluster: Cluster, api_keys: tuple[str, ...]) -> ServeOptions:
    """Of every gateway; `api_keys` where the file names none."""
    own: Mapping[str, object] = {
        "api-key": api_keys,
        "block-size": cluster.block_size,
        "max-model-len": cluster.max_model_len,
    }
    return read_options(None, {**own, **cluster.serve})


def handed_to(cluster: Cluster, process: str) -> Cluster:
    """The configuration as a process of that kind is handed it, wherever it runs: what depends on
    this machine is written out, and secrets of other processes are left out. A live cluster has
    faults of its own."""
    transport = replace(cluster.transport, connectors=connectors(cluster))
    resolved = replace(
        with_folders(cluster), transport=transport, journal=_journal(cluster.journal), faults=()
    )
    return without_secrets(resolved, process)


def _journal(journal: JournalConfig | None) -> JournalConfig | None:
    """With a folder that means the same from wherever a gateway is started."""
    if journal is None:
        return None
    return replace(journal, directory=str(Path(journal.directory).expanduser().absolute()))


def as_served(cluster: Cluster) -> Cluster:
    """The cluster whose pools have the figures that their live workers have."""
    pools = []
    for pool in cluster.pools:
        options = worker_options(cluster, pool)
        pools.append(
            replace(
                pool,
                max_num_seqs=options.max_num_seqs,
                max_num_batched_tokens=options.max_num_batched_tokens,
            )
        )
    return replace(cluster, pools=tuple(pools))


def on_cpu(pool: PoolConfig) -> bool:
    """Whether the pool's device is no GPU. Raises `InvalidConfiguration` for an unknown one."""
    return load_device(pool.device).name == "cpu"


def live_model(model: str) -> str | None:
    """The model as `tandem serve` takes it; None is the bundled one. Raises
    `InvalidConfiguration`."""
    here = Path(checkpoint_path(model)).expanduser()
    if here.exists():
        return str(here.absolute())
    if model == BUNDLED_MODEL.name:
        return None
    bundled = BUNDLED / model
    if "/" not in model and (bundled / "model.safetensors").exists():
        return str(bundled)
    if "/" not in model and (BUNDLED / "hardware/models" / f"{model}.json").exists():
        raise InvalidConfiguration(
            f"model {model} is a shape without weights, which only the simulator can use; give the "
            "folder of a checkpoint, or a name on the Hugging Face hub"
        )
    return model


def connectors(cluster: Cluster) -> tuple[str, ...]:
    """By preference: what the file names, else what suits the devices."""
    if cluster.transport.connectors is not None:
        return cluster.transport.connectors
    gpus = not all(on_cpu(pool) for pool in cluster.pools)
    return ("cuda-ipc", "tcp") if gpus else ("shm", "tcp")


def _refusals(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """What only the simulator can do, each with its place in the file."""
    yield from refused_tiers(cluster)
    for pool in cluster.pools:
        for key, problem in _refused_of(pool):
            yield pool_place(cluster, pool, key), problem
    named = cluster.transport.connectors
    if named == ("cuda-ipc",) and any(pool.device == "cpu" for pool in cluster.pools):
        yield ("transport.connectors", "cuda-ipc reaches the memory of GPUs only; add tcp")
    here = cluster.pools if cluster.launcher == "local" else ()
    processes = cluster.gateways
    processes += sum(cluster.most_workers(pool) * pool.devices for pool in here)
    processes += len(pool_nodes(cluster)) if here else 0
    if processes > MOST_PROCESSES:
        yield (
            "pools",
            f"the cluster would be {processes} processes on this machine; {MOST_PROCESSES} at most",
        )


def _refused_of(pool: PoolConfig) -> Iterator[tuple[str, str]]:
    if problem := name_problem(pool.name):
        yield "name", f"pool {problem}"
    if pool.dtype not in (*STORED, *QUANTISED):
        stored = ", ".join((*STORED, *QUANTISED))
        yield ("dtype", f"live weights are stored as {stored}, not as {pool.dtype}")
    if pool.kv_dtype not in KV_STORED:
        yield ("kv_dtype", f"live KV is {', '.join(KV_STORED)}, not {pool.kv_dtype}")
    if pool.sequence_parallel and pool.tensor_parallel == 1:
        yield ("sequence_parallel", "needs a tensor_parallel of 2 or more")
