"""Set-ups of the processes of a cluster: written by the launcher, read once by each process.

A set-up is who the process is, its keys, its place on the machine, and the configuration of the
cluster as it was read, without the secrets that other processes alone need. The files hold keys:
they are written for their owner alone.
"""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from tandem.config.cluster.file import Cluster
from tandem.config.cluster.workers import PoolConfig
from tandem.config.options import ServeOptions
from tandem.facts.kv import BlockFormat

T = TypeVar("T", bound=msgspec.Struct)

# The resolved cluster file in the state directory.
CLUSTER_FILE = "cluster.yaml"


class CurveKeys(msgspec.Struct, frozen=True):
    """Keys of one cluster, Z85, of which each process has those that it needs: the gateways' pair,
    the pair of one worker (or process of the shared pool), that of an operator, what workers prove
    to each other when KV moves (`transfer_secret`), and what KV in the shared pool is tagged with
    (`kv_secret`)."""

    gateway_public: str
    worker_public: str = ""
    worker_secret: str = ""
    gateway_secret: str = ""
    operator_public: str = ""
    operator_secret: str = ""
    transfer_secret: str = ""
    kv_secret: str = ""

    def of_worker(self) -> "CurveKeys":
        """What a worker needs."""
        return msgspec.structs.replace(
            self, gateway_secret="", operator_public="", operator_secret=""
        )

    def of_gateway(self) -> "CurveKeys":
        """What a gateway needs, which knows others by their public keys."""
        return msgspec.structs.replace(
            self, worker_secret="", operator_secret="", transfer_secret="", kv_secret=""
        )


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process, of the pool of that name, with a role that need not be the pool's.
    `options` are the pool's with this worker's threads and memory, `gateways` endpoints as
    `tcp://127.0.0.1:9000`. `kv_precisions` are all those that workers of the cluster store KV in
    (empty: this worker's), `shared_format` is that of the blocks in the shared pool, if there is
    one. The first of the worker's ranks leads and starts the others. `parent` is the process that
    starts it, and without which it does not live on."""

    worker: str
    pool: str
    role: str
    model: str | None
    options: ServeOptions
    gateways: tuple[str, ...]
    keys: CurveKeys
    cluster: Cluster
    kv_precisions: tuple[str, ...] = ()
    shared_format: BlockFormat | None = None
    parent: int = msgspec.field(default_factory=os.getpid)

    @property
    def pool_config(self) -> PoolConfig:
        return self.cluster.pool(self.pool)


class PoolNodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the shared pool, whose blocks all have the format `shared_format`. `listen` is
    where workers reach it, an address or address:port; empty for the address that faces the first
    gateway. `redis_password` is what stood in the variable that the cluster file names. `gateways`,
    `keys` and `parent` as of a worker."""

    node: str
    gateways: tuple[str, ...]
    keys: CurveKeys
    cluster: Cluster
    shared_format: BlockFormat
    listen: str = ""
    redis_password: str = ""
    parent: int = msgspec.field(default_factory=os.getpid)


class GatewayConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """What of a gateway's set-up changes while it runs: see there."""

    number: int
    cluster: Cluster
    options: ServeOptions
    plans: bool


class GatewaySetup(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway process. `listen` is the endpoint for workers and operators (port 0: any free
    one, then written into `state_directory`); who may come in stands in `keys`, and in the file
    `admitted` if there is one. The model of `cluster` is the folder it lies in; `model` is what
    `tandem serve` would be given. `configuration` is the number of what operators have applied
    since the cluster started. `parent` as of a worker."""

    gateway: str
    model: str | None
    options: ServeOptions
    listen: str
    keys: CurveKeys
    cluster: Cluster
    state_directory: str
    admitted: str = ""
    plans: bool = False
    configuration: int = 0
    parent: int = msgspec.field(default_factory=os.getpid)

    def configured(self, new: GatewayConfiguration) -> "GatewaySetup":
        """The set-up of the same gateway with another configuration."""
        return msgspec.structs.replace(
            self,
            configuration=new.number,
            cluster=new.cluster,
            options=new.options,
            plans=new.plans,
        )


class GatewayListening(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway process writes as `{gateway}.json` into its state directory once it takes
    requests: `endpoint` for workers and operators, `url` of the API without `/v1`."""

    gateway: str
    endpoint: str
    url: str
    pid: int


def read_setup(kind: type[T], file: Path) -> T:
    """The setup in a file of the launcher's."""
    return msgspec.json.decode(file.read_bytes(), type=kind)


def write_setup(setup: msgspec.Struct, file: Path) -> None:
    """Write it so that only its owner can read it, and a process that starts never half of it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    half = file.with_name(f"{file.name}.new")
    with os.fdopen(os.open(half, flags, 0o600), "wb") as opened:
        os.fchmod(opened.fileno(), 0o600)
        opened.write(msgspec.json.encode(setup))
    half.replace(file)
