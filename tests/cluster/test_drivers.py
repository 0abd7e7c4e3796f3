"""Every effect of a machine reaches the port that it is for."""

from typing import get_args
from unittest.mock import Mock

import pytest

from tandem.cluster.gateway import driver as gateway_driver
from tandem.cluster.node import driver as node_driver
from tandem.cluster.shared_pool import driver as pool_driver
from tandem.facts.fleet import Tier
from tandem.messages.gateway import GatewayEffect
from tandem.messages.node import Leave, NodeEffect
from tandem.messages.pool_node import PoolNodeEffect


def kinds(effects: object) -> list[type]:
    found: list[type] = []
    for kind in get_args(effects):
        found += kinds(kind) or [kind]
    return found


def made(kind: type) -> object:
    """One with something in each field."""
    return kind(*[Tier.HOST] * len(kind.__match_args__))


DRIVERS = {
    "node": (NodeEffect, node_driver.NodePorts, node_driver.perform, 5),
    "gateway": (GatewayEffect, gateway_driver.GatewayPorts, gateway_driver.perform, 5),
    "pool node": (PoolNodeEffect, pool_driver.PoolNodePorts, pool_driver.perform, 4),
}


@pytest.mark.parametrize(
    ("driver", "kind"), [(name, kind) for name in DRIVERS for kind in kinds(DRIVERS[name][0])]
)
def test_an_effect_is_one_call_of_a_port_or_the_end(driver, kind):
    _, ports, perform, count = DRIVERS[driver]
    port = Mock()
    left = perform([made(kind)], ports(*[port] * count))
    assert (left is not None) == (kind is Leave)
    assert len(port.method_calls) == (kind is not Leave)
