"""The connectors of a worker, by their names in the cluster file; secrets and addresses for
them."""

import socket
from collections.abc import Callable, Sequence
from hashlib import blake2b
from urllib.parse import urlsplit

from tandem.api.clock_and_entropy import fresh_seed
from tandem.config.cluster.live import connectors
from tandem.config.processes import PoolNodeSetup, WorkerSetup
from tandem.facts.errors import InvalidConfiguration
from tandem.kv.connectors.contract import Connector, ConnectorError
from tandem.kv.connectors.cuda_ipc import CudaIpcConnector
from tandem.kv.connectors.nixl import NixlConnector
from tandem.kv.connectors.shm import ShmConnector
from tandem.kv.connectors.tcp.connector import TcpConnector


def make_connectors(setup: WorkerSetup, agent: str) -> Sequence[Connector]:
    """In their order of preference. `agent` is a name that no other process of the cluster has.
    Raises `InvalidConfiguration`."""
    makers: dict[str, Callable[[], Connector]] = {
        "shm": ShmConnector,
        "tcp": lambda: TcpConnector(
            own_address(setup.gateways), transfer_secret(setup), entropy=random_bytes
        ),
        "nixl": lambda: NixlConnector(agent),
        "cuda-ipc": CudaIpcConnector,
    }
    names = connectors(setup.cluster)
    for name in names:
        if name not in makers:
            raise InvalidConfiguration(f"connector {name} is unknown; expected {', '.join(makers)}")
    try:
        return [makers[name]() for name in names]
    except ConnectorError as error:
        raise InvalidConfiguration(f"connectors: {error}") from error


def transfer_secret(setup: WorkerSetup | PoolNodeSetup) -> bytes:
    """What the processes of a cluster prove to each other: made of the secret that they share, and
    of no use for anything else."""
    return blake2b(b"tandem kv transfer", key=setup.keys.transfer_secret.encode()).digest()


def block_secret(setup: WorkerSetup | PoolNodeSetup) -> bytes:
    """What blocks in the shared pool are tagged with: outlives the cluster where what is tagged
    does."""
    return blake2b(b"tandem kv blocks", key=setup.keys.kv_secret.encode()).digest()


def random_bytes(count: int) -> bytes:
    """Bytes that nobody can guess."""
    words = (fresh_seed().to_bytes(8, "little") for _ in range(-(-count // 8)))
    return b"".join(words)[:count]


def own_address(gateways: Sequence[str]) -> str:
    """The address of this host that faces the first gateway: whoever works for that gateway, on
    this host or another, reaches it there."""
    gateway = urlsplit(gateways[0])
    if not gateway.hostname:
        raise InvalidConfiguration(f"gateway {gateways[0]} is no endpoint as tcp://host:port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            gateway.hostname, gateway.port or 1, type=socket.SOCK_DGRAM
        )[0]
        # Nothing is sent: only the way is chosen.
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InvalidConfiguration(
            f"gateway {gateways[0]} cannot be reached from here: {error.strerror}"
        ) from error
