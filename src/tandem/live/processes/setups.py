"""The set-ups of all processes of a cluster on this machine: keys, share of the machine, and
configuration; and the programs that are started with them."""

import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path

import msgspec

from tandem.api.clock_and_entropy import fresh_id
from tandem.config.checkpoints import find_checkpoint
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.keys import GATEWAY, SHARED_POOL, WORKER
from tandem.config.cluster.live import LiveFile, gateway_options, handed_to, live_model
from tandem.config.cluster.tiers import disk_folder
from tandem.config.cluster.workers import PoolConfig
from tandem.config.environment import child_environment, secret_line
from tandem.config.hardware.pools import pool_models
from tandem.config.kv_format import kv_format, kv_precisions
from tandem.config.machine_share import MachineShare
from tandem.config.processes import (
    CLUSTER_FILE,
    CurveKeys,
    GatewayConfiguration,
    GatewaySetup,
    PoolNodeSetup,
    WorkerSetup,
    write_setup,
)
from tandem.facts.kv import BlockFormat
from tandem.live.channels.keys import Admitted, KeyPair, PeerRole, make_pair
from tandem.live.launching.launcher import Program
from tandem.live.launching.private_directory import secret_of
from tandem.live.launching.state_directory import OPERATOR_KEY_FILE, StateDirectory

TANDEM = (sys.executable, "-m", "tandem")
# What a process of each kind is started with. The word after the module is for people (`pgrep -f`).
GATEWAY_PROCESS = (sys.executable, "-m", "tandem.live.processes.gateway", "gateway-process")
WORKER_PROCESS = (sys.executable, "-m", "tandem.live.processes.worker", "worker-process")
POOL_PROCESS = (sys.executable, "-m", "tandem.live.processes.shared_pool", "pool-process")
KEYS_FILE = "keys.json"
KV_SECRET_FILE = "kv.secret"
ADMITTED_FILE = "admitted"
# The revision of a model whose revision nobody names.
MAIN = "main"
ADMITTED_HEAD = "# Who may come to the gateways; a line that is gone is a key that is revoked.\n"


class Setups:
    """The set-ups of one cluster's processes. `keys` are fresh ones unless given, and then each
    worker has a pair of its own, which `admitted` names for the gateways; `checkpoint` is the
    folder of the model, and `own_checkpoints` those of pools that have another one. `alone` and
    `joins` as of `MachineShare`."""

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
        self.checkpoint = _checkpoint(self.model, str(cluster.serve.get("revision", MAIN)))
        self.own_checkpoints = pool_checkpoints(cluster)
        self.share = self._share(alone=alone, joins=joins)
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

    def with_cluster(self, cluster: Cluster) -> "Setups":
        """The set-ups of the same running cluster, which serves the same model, by another file:
        whoever starts finds the others there."""
        made = copy(self)
        made.cluster = cluster
        made.admitted = dict(self.admitted)
        made._pairs = None if self._pairs is None else dict(self._pairs)
        made.own_checkpoints = pool_checkpoints(cluster)
        made.share = made._share(alone=self.share.alone, joins=True)
        return made

    def at_checkpoints(self, cluster: Cluster) -> Cluster:
        """The cluster with its models at the folders that they lie in."""
        pools = tuple(
            replace(pool, model=str(self.own_checkpoints[pool.name])) if pool.model else pool
            for pool in cluster.pools
        )
        return replace(cluster, model=str(self.checkpoint), pools=pools)

    def gateway_configuration(self, setup: GatewaySetup, number: int) -> GatewayConfiguration:
        """What the gateway of this set-up is to run by, which keeps its port."""
        index = int(setup.gateway.rpartition("-")[2])
        new = self.gateway(index, Path(setup.state_directory), setup.listen)
        return GatewayConfiguration(
            number=number,
            cluster=new.cluster,
            options=msgspec.structs.replace(new.options, port=setup.options.port),
            plans=new.plans,
        )

    def forget(self, name: str) -> None:
        """The key of a process that has left for good is none any more."""
        self.admitted.pop(name, None)

    def gateway(self, index: int, directory: Path, listen: str) -> GatewaySetup:
        """Of gateway `index`, which workers reach at that endpoint."""
        keys = self.keys.of_gateway()
        if self.admitted:
            # Whoever stands in the file comes in by the file alone, and can be revoked there.
            keys = msgspec.structs.replace(keys, worker_public="", operator_public="")
        return GatewaySetup(
            gateway=f"gateway-{index}",
            model=self.model,
            options=gateway_options(self.cluster, self.share.host.api_keys),
            listen=listen,
            keys=keys,
            cluster=self.at_checkpoints(handed_to(self.cluster, GATEWAY)),
            state_directory=str(directory),
            admitted=str(directory / ADMITTED_FILE) if self.admitted else "",
            # One gateway plans: the first, where somebody launches what it wants.
            plans=self.cluster.plans and index == 0 and bool(self.admitted),
        )

    def worker(self, pool: PoolConfig, name: str, gateways: tuple[str, ...]) -> WorkerSetup:
        """Of a worker of the pool. Raises `InvalidConfiguration`."""
        cluster, model = handed_to(self.cluster, WORKER), self.model
        options = self.share.worker_options(pool)
        if pool.model is not None:
            model = str(self.own_checkpoints[pool.name])
            options = msgspec.structs.replace(options, revision=MAIN)
            # The shared pool keeps blocks of the cluster's model alone.
            cluster = replace(cluster, tiers=replace(cluster.tiers, remote=None))
        shared = cluster.tiers.remote is not None
        return WorkerSetup(
            worker=name,
            pool=pool.name,
            role=pool.role.value,
            model=model,
            options=options,
            gateways=gateways,
            keys=self._keys_of(name),
            cluster=cluster,
            kv_precisions=kv_precisions(self.cluster),
            shared_format=self.block_format() if shared else None,
        )

    def pool_node(self, name: str, gateways: tuple[str, ...]) -> PoolNodeSetup:
        """Of a process of the shared pool. Raises `InvalidConfiguration`."""
        remote = self.cluster.tiers.remote
        assert remote is not None
        return PoolNodeSetup(
            node=name,
            gateways=gateways,
            keys=self._keys_of(name),
            cluster=handed_to(self.cluster, SHARED_POOL),
            shared_format=self.block_format(),
            redis_password=secret_line(remote.redis_password_env),
        )

    def block_format(self) -> BlockFormat:
        """Of the shared pool. Raises `InvalidConfiguration`."""
        return kv_format(self.cluster, self.model, self.checkpoint).block_format

    def environment(self, pool: PoolConfig, index: int) -> Mapping[str, str]:
        """Of the worker that is number `index` on this machine."""
        seen = self.share.visible_gpus(pool, index)
        if seen is None:
            return process_environment()
        return process_environment(CUDA_VISIBLE_DEVICES=",".join(map(str, seen)))

    def _share(self, *, alone: bool, joins: bool) -> MachineShare:
        folders = self.checkpoint, self.own_checkpoints
        return MachineShare(self.cluster, *folders, alone=alone, joins=joins)

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


def write_cluster(file: LiveFile, setups: Setups, directory: StateDirectory) -> None:
    """What gateways and later commands read: the resolved cluster, and an operator's keys."""
    write_cluster_file(file, setups, directory)
    keys = msgspec.structs.replace(setups.keys, gateway_secret="")
    directory.write_private(KEYS_FILE, msgspec.json.encode(keys))
    directory.write_private(OPERATOR_KEY_FILE, fresh_id("operator-").encode())
    write_admitted(setups, directory)


def write_cluster_file(file: LiveFile, setups: Setups, directory: StateDirectory) -> None:
    """The resolved cluster alone. Readers see the old or the new one, never half of one."""
    own = {pool: str(folder) for pool, folder in setups.own_checkpoints.items()}
    text = file.text(str(setups.checkpoint), own)
    half = directory.write_private(f"{CLUSTER_FILE}.new", text.encode())
    half.replace(directory.path / CLUSTER_FILE)


def write_admitted(setups: Setups, directory: StateDirectory) -> None:
    """Who may come to the gateways, of those whose set-ups were made; gateways read it again."""
    if setups.admitted:
        lines = "".join(f"{line}\n" for line in setups.admitted.values())
        # Half a file would revoke the rest.
        half = directory.write_private(f"{ADMITTED_FILE}.new", f"{ADMITTED_HEAD}{lines}".encode())
        half.replace(directory.path / ADMITTED_FILE)


def program_of(
    setup: GatewaySetup | WorkerSetup | PoolNodeSetup,
    directory: StateDirectory,
    environment: Mapping[str, str] | None = None,
) -> Program:
    """The process of this set-up, after that is written; in `process_environment` unless given."""
    match setup:
        case GatewaySetup():
            name, command = setup.gateway, GATEWAY_PROCESS
        case WorkerSetup():
            name, command = setup.worker, WORKER_PROCESS
        case PoolNodeSetup():
            name, command = setup.node, POOL_PROCESS
    if environment is None:
        environment = process_environment()
    file = directory.path / f"{name}.setup.json"
    write_setup(setup, file)
    return Program(name, (*command, str(file)), environment, directory.log_file(name), file)


def process_environment(**changed: str) -> Mapping[str, str]:
    """Of any process: an unexpected error goes to the log as it is, without typer's frames."""
    return child_environment(TYPER_STANDARD_TRACEBACK="1", **changed)


def listen_address(cluster: Cluster) -> tuple[str, int]:
    """Where workers reach the first gateway, and the next ones at the ports behind it; port 0 is
    any free one."""
    host, _, port = cluster.listen.rpartition(":")
    return (host, int(port)) if host else (port, 0)


def pool_checkpoints(cluster: Cluster) -> dict[str, Path]:
    """The folders of the models that are not the cluster's, by pool. Raises
    `InvalidConfiguration`."""
    return {
        pool: _checkpoint(live_model(model), MAIN) for pool, model in pool_models(cluster).items()
    }


def _checkpoint(model: str | None, revision: str) -> Path:
    """The folder itself: a link to one may lead elsewhere when the next process starts."""
    found = find_checkpoint(model, revision)
    return found if model is None else found.resolve()


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
