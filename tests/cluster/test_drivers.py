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


@pytest.mark.parametrize("kind", kinds(NodeEffect))
def test_of_a_node(kind):
    everything = Mock()
    ports = node_driver.NodePorts(everything, everything, everything, everything, everything)
    left = node_driver.perform([made(kind)], ports)
    assert (left is not None) == (kind is Leave)
    assert len(everything.method_calls) == (kind is not Leave)


@pytest.mark.parametrize("kind", kinds(GatewayEffect))
def test_of_a_gateway(kind):
    everything = Mock()
    gateway_driver.perform([made(kind)], gateway_driver.GatewayPorts(*[everything] * 4))
    assert len(everything.method_calls) == 1


@pytest.mark.parametrize("kind", kinds(PoolNodeEffect))
def test_of_a_process_of_the_pool(kind):
    everything = Mock()
    ports = pool_driver.PoolNodePorts(everything, everything, everything, everything)
    left = pool_driver.perform([made(kind)], ports)
    assert (left is not None) == (kind is Leave)
    assert len(everything.method_calls) == (kind is not Leave)
