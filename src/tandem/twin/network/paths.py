"""Ports that a transfer crosses: links of a node, of the shared pool, and paths over them.

Ports are named from the node's memory outwards: `out` leaves it, `in` comes back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from tandem.facts.fleet import Tier

# The shared pool, where it is one process.
POOL = "pool"
POOL_READ, POOL_WRITE = f"{POOL}/out", f"{POOL}/in"


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """Bytes/s one way of one node's links; infinite: never in the way.

    `fabric` goes to other nodes (InfiniBand, Ethernet), `peer` stays inside the node (NVLink),
    `host` joins device and host memory (PCIe, C2C), and `remote` is the node's way to the pool.
    """

    fabric_bytes_per_s: float = inf
    peer_bytes_per_s: float = inf
    host_bytes_per_s: float = inf
    disk_read_bytes_per_s: float = inf
    disk_write_bytes_per_s: float = inf
    remote_bytes_per_s: float = inf

    def ports(self, node: str) -> dict[str, float]:
        return {
            f"{node}/fabric-out": self.fabric_bytes_per_s,
            f"{node}/fabric-in": self.fabric_bytes_per_s,
            f"{node}/peer-out": self.peer_bytes_per_s,
            f"{node}/peer-in": self.peer_bytes_per_s,
            f"{node}/host-out": self.host_bytes_per_s,
            f"{node}/host-in": self.host_bytes_per_s,
            f"{node}/disk-out": self.disk_write_bytes_per_s,
            f"{node}/disk-in": self.disk_read_bytes_per_s,
            f"{node}/remote-out": self.remote_bytes_per_s,
            f"{node}/remote-in": self.remote_bytes_per_s,
        }


def fabric_ports(node: str) -> tuple[str, str]:
    """What a slow link or a partition of the node concerns."""
    return f"{node}/fabric-out", f"{node}/fabric-in"


def path_to_node(source: str, target: str) -> tuple[str, str]:
    """From one device's memory to another's; `source` and `target` are their nodes."""
    link = "peer" if source == target else "fabric"
    return f"{source}/{link}-out", f"{target}/{link}-in"


# Blocks pass through host memory on their way to the disk; the network card reads either memory.
_WAYS: Mapping[tuple[Tier, Tier], tuple[str, ...]] = {
    (Tier.DEVICE, Tier.HOST): ("host-out",),
    (Tier.DEVICE, Tier.DISK): ("host-out", "disk-out"),
    (Tier.HOST, Tier.DISK): ("disk-out",),
    (Tier.DEVICE, Tier.REMOTE): ("fabric-out", "remote-out"),
    (Tier.HOST, Tier.REMOTE): ("fabric-out", "remote-out"),
    (Tier.HOST, Tier.DEVICE): ("host-in",),
    (Tier.DISK, Tier.DEVICE): ("disk-in", "host-in"),
    (Tier.DISK, Tier.HOST): ("disk-in",),
    (Tier.REMOTE, Tier.DEVICE): ("remote-in", "fabric-in"),
    (Tier.REMOTE, Tier.HOST): ("remote-in", "fabric-in"),
}


def pool_ports(process: str, bytes_per_s: float) -> dict[str, float]:
    """Of one process of the shared pool."""
    return {f"{process}/out": bytes_per_s, f"{process}/in": bytes_per_s}


def path_between_pool_processes(source: str, target: str) -> tuple[str, str]:
    """From one process of the shared pool to another."""
    return f"{source}/out", f"{target}/in"


def path_between_tiers(node: str, source: Tier, target: Tier, pool: str = POOL) -> tuple[str, ...]:
    """From one tier of a node to another; REMOTE is the process `pool` that all nodes share."""
    own = tuple(f"{node}/{link}" for link in _WAYS[source, target])
    if target is Tier.REMOTE:
        return (*own, f"{pool}/in")
    return (f"{pool}/out", *own) if source is Tier.REMOTE else own
