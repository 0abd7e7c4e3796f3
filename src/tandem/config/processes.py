"""What the processes of a cluster are told when they start: written by the launcher, read once.

The files hold keys: they are written for their owner alone.
"""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from tandem.config.options import ServeOptions

T = TypeVar("T", bound=msgspec.Struct)


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


class HealthSetup(msgspec.Struct, frozen=True):
    """Seconds. See `config.cluster.HealthConfig`."""

    report_interval_s: float = 0.1
    heartbeat_timeout_s: float = 10.0
    transfer_timeout_s: float = 60.0
    lease_s: float = 30.0


class TiersSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Room for a worker's KV beyond its device; 0 bytes where there is no such tier. The file on
    the disk lies in the folder `disk`. With `remote` there is a shared pool, for blocks of the
    format `root` (the hash of the cache root without a salt) and `block_bytes`. `quotas` are the
    shares of tenants, `pin_share` and `pin_shares` what may be pinned together and by tenant."""

    host_bytes: int = 0
    disk_bytes: int = 0
    disk: str = ""
    remote: bool = False
    root: bytes = b""
    block_bytes: int = 0
    eviction: str = "lru"
    quotas: dict[str, float] = {}
    pin_share: float = 0.5
    pin_shares: dict[str, float] = {}


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process. `gateways` are endpoints as `tcp://127.0.0.1:9000`; `connectors` by
    preference; `wire_dtype` None moves KV as the source stores it, and `kv_precisions` are all
    those that workers of the cluster store it in (empty: this worker's). `tensor_parallel` x
    `pipeline_parallel` ranks, the first of which leads and starts the others. `parent` is the
    process that starts it, and without which it does not live on."""

    worker: str
    pool: str
    role: str
    model: str | None
    options: ServeOptions
    gateways: tuple[str, ...]
    keys: CurveKeys
    health: HealthSetup
    connectors: tuple[str, ...] = ("shm", "tcp")
    wire_dtype: str | None = None
    kv_precisions: tuple[str, ...] = ()
    checksums: bool = True
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    sequence_parallel: bool = False
    all_reduce: str = "one-shot"
    tiers: TiersSetup | None = None
    parent: int = msgspec.field(default_factory=os.getpid)


class PoolNodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the shared pool, which keeps `capacity_bytes` of blocks in memory. What does
    not fit goes to a file in the folder `disk`, at most `disk_bytes` of it, or to the server at the
    URL `redis`, at most `redis_bytes`; its password is `redis_password`, or what stands in
    `redis_password_file` at each connection. All blocks have the format of `root` (the hash of the
    cache root without a salt) and `block_bytes`. `listen` is where workers reach it, an address or
    address:port; empty for the address that faces the first gateway. `quotas`, `pin_share`
    and `pin_shares` as of a worker's tiers; `gateways`, `keys` and `parent` as of a worker."""

    node: str
    gateways: tuple[str, ...]
    keys: CurveKeys
    health: HealthSetup
    root: bytes
    block_bytes: int
    capacity_bytes: int
    listen: str = ""
    disk: str | None = None
    disk_bytes: int = 0
    redis: str | None = None
    redis_bytes: int = 0
    redis_password: str = ""
    redis_password_file: str | None = None
    replicas: int = 2
    eviction: str = "lru"
    quotas: dict[str, float] = {}
    pin_share: float = 0.5
    pin_shares: dict[str, float] = {}
    native_kernels: bool = True
    log_level: str = "warning"
    parent: int = msgspec.field(default_factory=os.getpid)


class GatewaySetup(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway process. `cluster_file` is the resolved cluster; `listen` the endpoint for
    workers and operators (port 0: any free one, then told in `state_directory`); who may come in
    stands in `keys`, and in the file `admitted` if there is one; `parent` as of a worker."""

    gateway: str
    cluster_file: str
    model: str | None
    options: ServeOptions
    listen: str
    keys: CurveKeys
    health: HealthSetup
    state_directory: str
    admitted: str = ""
    parent: int = msgspec.field(default_factory=os.getpid)


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
    """Write it so that only its owner can read it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(file, flags, 0o600), "wb") as opened:
        os.fchmod(opened.fileno(), 0o600)
        opened.write(msgspec.json.encode(setup))
