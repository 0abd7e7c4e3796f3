"""The ways between nodes and tiers lead over ports that exist, in the right direction."""

from itertools import permutations

import pytest

from tandem.facts.fleet import Tier
from tandem.twin.network.model import Network
from tandem.twin.network.paths import (
    POOL_READ,
    POOL_WRITE,
    NodeLinks,
    fabric_ports,
    path_between_tiers,
    path_to_node,
)

# An H100 node of eight: 50 GB/s a NIC, NVLink 450, PCIe 5.0; NVMe and a pool as measured elsewhere.
LINKS = NodeLinks(400e9, 450e9, 64e9, 7e9, 5e9)
UP_AND_DOWN = [
    (source, target)
    for source, target in permutations(Tier, 2)
    if (source, target) not in {(Tier.DISK, Tier.REMOTE), (Tier.REMOTE, Tier.DISK)}
]


def seconds(path: tuple[str, ...]) -> float:
    ports = LINKS.ports("a") | LINKS.ports("b") | {POOL_READ: 100e9, POOL_WRITE: 50e9}
    network = Network(ports)
    network.start(0, path, 100e9, 0)
    return (network.next_event_ns() or 0) / 1e9


@pytest.mark.parametrize(("source", "target"), UP_AND_DOWN)
def test_a_block_moves_between_tiers_as_fast_as_the_slowest_link_on_the_way(source, target):
    slowest = {
        (Tier.DEVICE, Tier.HOST): 64e9,
        (Tier.HOST, Tier.DEVICE): 64e9,
        (Tier.DEVICE, Tier.DISK): 5e9,
        (Tier.HOST, Tier.DISK): 5e9,
        (Tier.DISK, Tier.DEVICE): 7e9,
        (Tier.DISK, Tier.HOST): 7e9,
        (Tier.DEVICE, Tier.REMOTE): 50e9,
        (Tier.HOST, Tier.REMOTE): 50e9,
        (Tier.REMOTE, Tier.DEVICE): 100e9,
        (Tier.REMOTE, Tier.HOST): 100e9,
    }[source, target]
    took = seconds(path_between_tiers("a", source, target))
    assert took == pytest.approx(100e9 / slowest, abs=1e-9)


def test_workers_of_one_node_talk_over_the_peer_link_others_over_the_fabric():
    assert seconds(path_to_node("a", "a")) == pytest.approx(100 / 450, abs=1e-9)
    assert seconds(path_to_node("a", "b")) == 0.25
    assert path_to_node("a", "b") == (fabric_ports("a")[0], fabric_ports("b")[1])


def test_reading_and_writing_do_not_slow_each_other_down():
    network = Network(LINKS.ports("a"))
    network.start(1, path_between_tiers("a", Tier.DEVICE, Tier.HOST), 64e9, 0)
    network.start(2, path_between_tiers("a", Tier.HOST, Tier.DEVICE), 64e9, 0)
    assert network.advance(10**9) == [1, 2]
