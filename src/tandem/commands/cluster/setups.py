"""What every process of a cluster on this machine is told when it starts: keys, options, its share
of the machine."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from tandem.commands.cluster.kept_secret import secret_of
from tandem.commands.cluster.kv_form import kv_form, kv_precisions
from tandem.commands.cluster.memory import (
    ModelFiles,
    need_beside_all_kv,
    need_beside_kv,
    read_model_files,
    refused_together,
    worker_kv,
)
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
    tenant_pin_shares,
    tenant_shares,
    worker_tiers,
)
from tandem.config.environment import child_environment, host_facts, secret_line
from tandem.config.hardware import BUNDLED_MODEL
from tandem.config.options import ServeOptions, parse_bytes
from tandem.config.processes import (
    CurveKeys,
    GatewaySetup,
    HealthSetup,
    PoolNodeSetup,
    WorkerSetup,
    write_setup,
)
from tandem.config.shares import cpu_pool_bytes, gpu_pool_bytes, threads_of_each
from tandem.config.storage import storage_of
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv_tiers import BlockFormat
from tandem.live.channels.admitted import Admitted, PeerRole
from tandem.live.channels.curve import KeyPair, make_pair
from tandem.live.launching.launcher import Program
from tandem.live.launching.state_directory import StateDirectory
from tandem.models.footprint import weight_bytes
from tandem.models.parallel import places

TANDEM = (sys.executable, "-m", "tandem")
PROCESS = (sys.executable, "-m", "tandem.commands.processes")
CLUSTER_FILE = "cluster.yaml"
KEYS_FILE = "keys.json"
KV_SECRET_FILE = "kv.secret"
ADMITTED_FILE = "admitted"
ADMITTED_HEAD = "# Who may come to the gateways; a line that is gone is a key that is revoked.\n"


@dataclass(frozen=True, slots=True)
class Gpus:
    """Those of this machine: `total_bytes` is of one."""

    count: int = 0
    total_bytes: int = 0


class Setups:
    """The set-ups of one cluster's processes. `keys` are fresh ones unless given, and then each
    worker has a pair of its own, which `admitted` names for the gateways; `checkpoint` is the
    folder of the model. Where each process is `alone` on its machine, none shares its cores, memory
    or GPUs with another; one that `joins` finds the others running."""

    def __init__(
        self,
        cluster: Cluster,
        keys: CurveKeys | None = None,
        *,
        alone: bool = False,
        joins: bool = False,
    ) -> None:
        self.cluster = cluster
        self.model = live_model(cluster.model)
        self.checkpoint = find_checkpoint(self.model, cluster)
        self.host = host_facts()
        # Ray sets aside what each worker needs, wherever that is.
        self.alone = alone or on_ray(cluster)
        self.joins = joins
        self.gpus = Gpus() if self.alone else _gpus(cluster)
        self.keys = keys or fresh_keys(kept_secret(cluster))
        self.admitted: dict[str, Admitted] = {}
        # Not those that others find: a supervisor that may not ask takes gateways for dead.
        self.supervisor_keys = self.keys
        if keys is None:
            own = make_pair()
            self.supervisor_keys = msgspec.structs.replace(
                self.keys, operator_public=own.public, operator_secret=own.secret
            )
            self._admit(PeerRole.OPERATOR, "supervisor", own.public)
            self._admit(PeerRole.OPERATOR, "operator", self.keys.operator_public)
            self._admit(PeerRole.WORKER, "joined", self.keys.worker_public)
        self._pairs: dict[str, KeyPair] | None = {} if keys is None else None
        self._has_tiers = has_tiers(cluster)

    def gateway(self, index: int, directory: Path, listen: str) -> GatewaySetup:
        """Of gateway `index`, which workers reach at that endpoint."""
        keys = self.keys.of_gateway()
        if self.admitted:
            # Whoever stands in the file comes in by the file alone, and can be revoked there.
            keys = msgspec.structs.replace(keys, worker_public="", operator_public="")
        return GatewaySetup(
            gateway=f"gateway-{index}",
            cluster_file=str(directory / CLUSTER_FILE),
            model=self.model,
            options=gateway_options(self.cluster, self.host.api_keys),
            listen=listen,
            keys=keys,
            health=_health(self.cluster),
            state_directory=str(directory),
            admitted=str(directory / ADMITTED_FILE) if self.admitted else "",
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
            keys=self._keys_of(name),
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
            keys=self._keys_of(name),
            health=_health(self.cluster),
            root=block_format.root,
            block_bytes=block_format.block_bytes,
            capacity_bytes=int(remote.capacity_bytes / remote.nodes),
            disk=str(disk) if disk else None,
            disk_bytes=int(remote.disk.capacity_bytes / remote.nodes) if remote.disk else 0,
            redis=remote.redis,
            redis_bytes=int(remote.redis_capacity_bytes / remote.nodes),
            redis_password=secret_line(remote.redis_password_env),
            redis_password_file=remote.redis_password_file,
            replicas=remote.replicas,
            eviction=self.cluster.policies.eviction.name,
            quotas=tenant_shares(self.cluster),
            pin_share=self.cluster.tiers.pin_share,
            pin_shares=tenant_pin_shares(self.cluster),
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

    def _keys_of(self, name: str) -> CurveKeys:
        """The keys that were given, or a pair of that process's own."""
        keys = self.keys.of_worker()
        if self._pairs is None:
            return keys
        pair = self._pairs.setdefault(name, make_pair())
        self._admit(PeerRole.WORKER, name, pair.public)
        return msgspec.structs.replace(keys, worker_public=pair.public, worker_secret=pair.secret)

    def _admit(self, role: PeerRole, name: str, public: str) -> None:
        self.admitted[name] = Admitted(role, public, name)

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

    @cached_property
    def model_files(self) -> ModelFiles:
        """Raises `InvalidConfiguration`."""
        return read_model_files(self.cluster, self.checkpoint)

    def checked_memory(self) -> tuple[str, ...]:
        """What of the wishes is cut, for a person, a line each. Raises `InvalidConfiguration` when
        everything together does not fit into this machine."""
        if self.alone:
            return ()
        cuts: list[str] = []
        kv: dict[str, int] = {}
        for pool in self.cluster.pools:
            options = self.worker(pool, pool.name, ()).options
            if options.kv_cache_memory != "auto":
                sizes, kv_bytes = worker_kv(self.model_files, pool, options)
                cuts += [f"each worker of pool {pool.name}: {cut}" for cut in sizes.cuts]
                kv[pool.name] = kv_bytes if on_cpu(pool) else 0
        free_bytes = self.host.free_memory_bytes
        if problem := refused_together(self.cluster, self.model_files, kv, free_bytes):
            raise InvalidConfiguration(problem)
        return tuple(cuts)

    def _pool_bytes(self, options: ServeOptions, pool: PoolConfig) -> int | None:
        """None for a worker that has its GPUs for itself: it knows best what they hold."""
        alike = [each for each in self.cluster.pools if on_cpu(each) == on_cpu(pool)]
        if on_cpu(pool):
            pool_bytes = self._cpu_pool_bytes(options, pool, alike)
        else:
            ranks = sum(each.count * each.devices for each in alike)
            sharing = -(-ranks // self.gpus.count)
            if sharing == 1:
                return None
            usable_bytes = int(options.gpu_memory_utilization * self.gpus.total_bytes)
            weights = self._gpu_weight_bytes(options, pool)
            pool_bytes = gpu_pool_bytes(usable_bytes, weights // pool.devices, sharing)
            pool_bytes *= pool.devices
        if not pool_bytes:
            raise InvalidConfiguration(
                f"pool {pool.name}: no memory is left for the KV cache beside the weights of all "
                "workers; start fewer, or set serve.kv-cache-memory"
            )
        return pool_bytes

    def _cpu_pool_bytes(
        self, options: ServeOptions, pool: PoolConfig, alike: list[PoolConfig]
    ) -> int:
        """Raises `InvalidConfiguration` when the model is too large."""
        free_bytes, workers = self.host.free_memory_bytes, sum(each.count for each in alike)
        if self.joins:
            own = need_beside_kv(self.model_files, pool, options).without_kv
            host = self.cluster.tiers.host
            own += int(host.capacity_bytes) if host else 0
            return cpu_pool_bytes(free_bytes, own, workers)
        if problem := refused_together(self.cluster, self.model_files, {}, free_bytes):
            raise InvalidConfiguration(problem)
        beside = need_beside_all_kv(self.cluster, self.model_files).without_kv
        for each in alike:
            said = worker_options(self.cluster, each).kv_cache_memory
            if said != "auto":
                workers -= each.count
                beside += parse_bytes(said, "kv-cache-memory") * each.count
        return cpu_pool_bytes(free_bytes, beside, workers)

    def _gpu_weight_bytes(self, options: ServeOptions, pool: PoolConfig) -> int:
        storage = storage_of(options, self.model_files.spec, is_cpu=False)
        ranks = places(pool.tensor_parallel, pool.pipeline_parallel)
        spec, shapes = self.model_files.spec, self.model_files.shapes
        return weight_bytes(spec, shapes, ranks, storage=storage, compute_bytes=2).held


def write_cluster(file: LiveFile, setups: Setups, directory: StateDirectory) -> None:
    """What gateways and later commands read: the resolved cluster, and an operator's keys."""
    text = file.text(str(setups.checkpoint))
    directory.write_private(CLUSTER_FILE, text.encode())
    keys = msgspec.structs.replace(setups.keys, gateway_secret="")
    directory.write_private(KEYS_FILE, msgspec.json.encode(keys))
    write_admitted(setups, directory)


def write_admitted(setups: Setups, directory: StateDirectory) -> None:
    """Who may come to the gateways, of those whose set-ups were made; gateways read it again."""
    if setups.admitted:
        lines = "".join(f"{line}\n" for line in setups.admitted.values())
        # Half a file would revoke the rest.
        half = directory.write_private(f"{ADMITTED_FILE}.new", f"{ADMITTED_HEAD}{lines}".encode())
        half.replace(directory.path / ADMITTED_FILE)


def gateway_program(setup: GatewaySetup, directory: StateDirectory) -> Program:
    """The process of a gateway, after its set-up is written."""
    file = directory.path / f"{setup.gateway}.setup.json"
    write_setup(setup, file)
    command = (*PROCESS, "gateway-process", str(file))
    log = directory.log_file(setup.gateway)
    return Program(setup.gateway, command, process_environment(), log, file)


def worker_program(
    setup: WorkerSetup, directory: StateDirectory, environment: Mapping[str, str]
) -> Program:
    """The process of a worker, after its set-up is written."""
    file = directory.path / f"{setup.worker}.setup.json"
    write_setup(setup, file)
    command = (*PROCESS, "worker-process", str(file))
    log = directory.log_file(setup.worker)
    return Program(setup.worker, command, environment, log, file)


def pool_node_program(setup: PoolNodeSetup, directory: StateDirectory) -> Program:
    """A process of the shared pool, after its set-up is written."""
    file = directory.path / f"{setup.node}.setup.json"
    write_setup(setup, file)
    command = (*PROCESS, "pool-process", str(file))
    return Program(setup.node, command, process_environment(), directory.log_file(setup.node), file)


def process_environment(**changed: str) -> Mapping[str, str]:
    """Of any process: an unexpected error goes to the log as it is, without typer's frames."""
    return child_environment(TYPER_STANDARD_TRACEBACK="1", **changed)


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
    """Of a whole cluster: its gateways, one worker and one operator."""
    gateways, worker, operator = make_pair(), make_pair(), make_pair()
    return CurveKeys(
        gateway_public=gateways.public,
        worker_public=worker.public,
        worker_secret=worker.secret,
        gateway_secret=gateways.secret,
        kv_secret=kv_secret or make_pair().secret,
        operator_public=operator.public,
        operator_secret=operator.secret,
        # As good a secret as any.
        transfer_secret=make_pair().secret,
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
