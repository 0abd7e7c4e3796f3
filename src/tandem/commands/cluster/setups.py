"""What every process of a cluster on this machine is told when it starts: keys, options, its share
of the machine."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tandem.commands.cluster.kept_secret import secret_of
from tandem.commands.cluster.kv_form import kv_form, kv_precisions
from tandem.config.cluster import Cluster, PoolConfig
from tandem.config.cluster_live import (
    LIVE_REPORT_INTERVAL_S,
    LiveFile,
    connectors,
    gateway_options,
    live_model,
    on_cpu,
    worker_options,
)
from tandem.config.cluster_placement import on_ray, placed_options
from tandem.config.cluster_tiers import (
    disk_folder,
    has_tiers,
    memory_bytes,
    tenant_shares,
    worker_tiers,
)
from tandem.config.environment import child_environment, host_facts
from tandem.config.hardware import BUNDLED_MODEL
from tandem.config.options import ServeOptions
from tandem.config.processes import (
    CurveKeys,
    GatewaySetup,
    HealthSetup,
    PoolNodeSetup,
    WorkerSetup,
    write_setup,
)
from tandem.config.shares import (
    checkpoint_bytes,
    cpu_pool_bytes,
    gpu_pool_bytes,
    threads_of_each,
)
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv_tiers import BlockFormat
from tandem.live.launching.launcher import Program
from tandem.live.launching.state_directory import StateDirectory
from tandem.wire.curve import make_keys

TANDEM = (sys.executable, "-m", "tandem")
CLUSTER_FILE = "cluster.yaml"
KEYS_FILE = "keys.json"
KV_SECRET_FILE = "kv.secret"


@dataclass(frozen=True, slots=True)
class Gpus:
    """Those of this machine: `total_bytes` is of one."""

    count: int = 0
    total_bytes: int = 0


class Setups:
    """The set-ups of one cluster's processes. `keys` are everybody's, fresh ones unless given;
    `checkpoint` is the folder of the model. Where each process is `alone` on its machine, none
    shares its cores, memory or GPUs with another."""

    def __init__(
        self, cluster: Cluster, keys: CurveKeys | None = None, *, alone: bool = False
    ) -> None:
        self.cluster = cluster
        self.model = live_model(cluster.model)
        self.checkpoint = find_checkpoint(self.model, cluster)
        self.host = host_facts()
        # Ray sets aside what each worker needs, wherever that is.
        self.alone = alone or on_ray(cluster)
        self.gpus = Gpus() if self.alone else _gpus(cluster)
        self.keys = keys or fresh_keys(kept_secret(cluster))
        self._has_tiers = has_tiers(cluster)

    def gateway(self, index: int, directory: Path, listen: str) -> GatewaySetup:
        """Of gateway `index`, which workers reach at that endpoint."""
        return GatewaySetup(
            gateway=f"gateway-{index}",
            cluster_file=str(directory / CLUSTER_FILE),
            model=self.model,
            options=gateway_options(self.cluster, self.host.api_keys),
            listen=listen,
            keys=self.keys,
            health=_health(self.cluster),
            state_directory=str(directory),
        )

    def worker(self, pool: PoolConfig, name: str, gateways: tuple[str, ...]) -> WorkerSetup:
        """Of a worker of the pool. Raises `InvalidConfiguration`."""
        transport = self.cluster.transport
        return WorkerSetup(
            worker=name,
            pool=pool.name,
            role=pool.role.value,
            model=self.model,
            options=self._shared(worker_options(self.cluster, pool), pool),
            gateways=gateways,
            keys=without_gateway_secret(self.keys),
            health=_health(self.cluster),
            connectors=connectors(self.cluster),
            wire_dtype=transport.wire_dtype,
            kv_precisions=kv_precisions(self.cluster),
            checksums=transport.checksums,
            tensor_parallel=pool.tensor_parallel,
            pipeline_parallel=pool.pipeline_parallel,
            sequence_parallel=pool.sequence_parallel,
            all_reduce=pool.all_reduce,
            tiers=worker_tiers(self.cluster, self.block_format()) if self._has_tiers else None,
        )

    def pool_node(self, name: str, gateways: tuple[str, ...]) -> PoolNodeSetup:
        """Of a process of the shared pool. Raises `InvalidConfiguration`."""
        remote = self.cluster.tiers.remote
        assert remote is not None
        block_format, options = self.block_format(), gateway_options(self.cluster, ())
        disk = disk_folder(self.cluster, remote.disk.path) if remote.disk else None
        return PoolNodeSetup(
            node=name,
            gateways=gateways,
            keys=without_gateway_secret(self.keys),
            health=_health(self.cluster),
            root=block_format.root,
            block_bytes=block_format.block_bytes,
            capacity_bytes=int(remote.capacity_bytes / remote.nodes),
            disk=str(disk) if disk else None,
            disk_bytes=int(remote.disk.capacity_bytes / remote.nodes) if remote.disk else 0,
            redis=remote.redis,
            redis_bytes=int(remote.redis_capacity_bytes / remote.nodes),
            replicas=remote.replicas,
            eviction=self.cluster.policies.eviction.name,
            quotas=tenant_shares(self.cluster),
            native_kernels=options.native_kernels,
            log_level=options.log_level,
        )

    def block_format(self) -> BlockFormat:
        """Of the shared pool. Raises `InvalidConfiguration`."""
        return kv_form(self.cluster, self.model, self.checkpoint).block_format

    def environment(self, pool: PoolConfig, index: int) -> Mapping[str, str]:
        """Of the worker that is number `index` on this machine: where there are several GPUs, it
        sees its own alone."""
        if on_cpu(pool) or self.gpus.count < 2:
            return process_environment()
        first = index * pool.devices
        seen = sorted({(first + rank) % self.gpus.count for rank in range(pool.devices)})
        return process_environment(CUDA_VISIBLE_DEVICES=",".join(map(str, seen)))

    def _shared(self, options: ServeOptions, pool: PoolConfig) -> ServeOptions:
        """The options with this worker's part of what all of them share."""
        if self.alone:
            return placed_options(pool, options)
        changed: dict[str, object] = {}
        if not options.threads:
            ranks = sum(each.count * each.devices for each in self.cluster.pools)
            changed["threads"] = threads_of_each(self.host.cores, ranks)
        if options.kv_cache_memory == "auto":
            pool_bytes = self._pool_bytes(options, pool)
            if pool_bytes is not None:
                changed["kv_cache_memory"] = str(pool_bytes)
        return msgspec.structs.replace(options, **changed)

    def _pool_bytes(self, options: ServeOptions, pool: PoolConfig) -> int | None:
        """None for a worker that has its GPUs for itself: it knows best what they hold."""
        weight_bytes = checkpoint_bytes(self.checkpoint)
        alike = [each for each in self.cluster.pools if on_cpu(each) == on_cpu(pool)]
        if on_cpu(pool):
            workers = sum(each.count for each in alike)
            free_bytes = max(0, self.host.free_memory_bytes - memory_bytes(self.cluster))
            pool_bytes = cpu_pool_bytes(free_bytes, weight_bytes, workers)
        else:
            ranks = sum(each.count * each.devices for each in alike)
            sharing = -(-ranks // self.gpus.count)
            if sharing == 1:
                return None
            usable_bytes = int(options.gpu_memory_utilization * self.gpus.total_bytes)
            pool_bytes = gpu_pool_bytes(usable_bytes, weight_bytes // pool.devices, sharing)
            pool_bytes *= pool.devices
        if not pool_bytes:
            raise InvalidConfiguration(
                f"pool {pool.name}: no memory is left for the KV cache beside the weights of all "
                "workers; start fewer, or set serve.kv-cache-memory"
            )
        return pool_bytes


def write_cluster(file: LiveFile, setups: Setups, directory: StateDirectory) -> None:
    """What gateways and later commands read: the resolved cluster, and an operator's keys."""
    text = file.text(str(setups.checkpoint))
    directory.write_private(CLUSTER_FILE, text.encode())
    keys = without_gateway_secret(setups.keys)
    directory.write_private(KEYS_FILE, msgspec.json.encode(keys))


def gateway_program(setup: GatewaySetup, directory: StateDirectory) -> Program:
    """The process of a gateway, after its set-up is written."""
    file = directory.path / f"{setup.gateway}.setup.json"
    write_setup(setup, file)
    command = (*TANDEM, "gateway-process", str(file))
    log = directory.log_file(setup.gateway)
    return Program(setup.gateway, command, process_environment(), log, file)


def worker_program(
    setup: WorkerSetup, directory: StateDirectory, environment: Mapping[str, str]
) -> Program:
    """The process of a worker, after its set-up is written."""
    file = directory.path / f"{setup.worker}.setup.json"
    write_setup(setup, file)
    command = (*TANDEM, "worker-process", str(file))
    log = directory.log_file(setup.worker)
    return Program(setup.worker, command, environment, log, file)


def pool_node_program(setup: PoolNodeSetup, directory: StateDirectory) -> Program:
    """A process of the shared pool, after its set-up is written."""
    file = directory.path / f"{setup.node}.setup.json"
    write_setup(setup, file)
    command = (*TANDEM, "pool-process", str(file))
    return Program(setup.node, command, process_environment(), directory.log_file(setup.node), file)


def process_environment(**changed: str) -> Mapping[str, str]:
    """Of any process: an unexpected error goes to the log as it is, without typer's frames."""
    return child_environment(TYPER_STANDARD_TRACEBACK="1", **changed)


def without_gateway_secret(keys: CurveKeys) -> CurveKeys:
    return msgspec.structs.replace(keys, gateway_secret="")


def find_checkpoint(model: str | None, cluster: Cluster) -> Path:
    """The folder of the model, fetched from the hub where it is not here. Raises
    `InvalidConfiguration`."""
    if model is None:
        return BUNDLED_MODEL
    here = Path(model).expanduser()
    if here.is_dir():
        return here.resolve()
    # Asking the hub takes torch with it, which takes seconds to import.
    revision = str(cluster.serve.get("revision", "main"))
    found = importlib.import_module("tandem.models.load").find_model(model, revision)
    assert isinstance(found, Path)
    return found


def kept_secret(cluster: Cluster) -> str:
    """What KV in the shared pool is tagged with, where that lies on a disk or a server that outlive
    the cluster; empty where nothing does. Raises `InvalidConfiguration`."""
    remote = cluster.tiers.remote
    if remote is None or (remote.disk is None and remote.redis is None):
        return ""
    return secret_of(disk_folder(cluster, None).parent / KV_SECRET_FILE)


def fresh_keys(kv_secret: str = "") -> CurveKeys:
    gateways, workers = make_keys()
    return CurveKeys(
        gateway_public=gateways.public,
        worker_public=workers.public,
        worker_secret=workers.secret,
        gateway_secret=gateways.secret,
        kv_secret=kv_secret or make_keys()[0].secret,
    )


def _gpus(cluster: Cluster) -> Gpus:
    wanting = [pool for pool in cluster.pools if not on_cpu(pool)]
    if not wanting:
        return Gpus()
    # Only a cluster that wants GPUs waits for torch to look for them.
    machine = importlib.import_module("tandem.config.machine").machine_facts()
    if not machine.gpus:
        raise InvalidConfiguration(
            f"pool {wanting[0].name}: device {wanting[0].device} is a GPU, and this machine has "
            "none; write device: cpu"
        )
    return Gpus(len(machine.gpus), machine.gpu_total_bytes)


def _health(cluster: Cluster) -> HealthSetup:
    health = cluster.health
    return HealthSetup(
        report_interval_s=health.report_interval_s or LIVE_REPORT_INTERVAL_S,
        heartbeat_timeout_s=health.heartbeat_timeout_s,
        transfer_timeout_s=health.transfer_timeout_s,
        lease_s=health.lease_s,
    )
