"""Another configuration of a gateway that runs: policies whose choice is as before are the very
objects that remember, all else is as the new file has it."""

from pathlib import Path

import pytest

from tandem.cluster.gateway.configuration import GatewayConfig
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import as_served, checked
from tandem.config.cluster.tree import override, parse
from tandem.config.gateway import reconfigured
from tandem.config.hardware.pools import capacity_of
from tandem.config.policies import (
    learning_of,
    limit_terms,
    planning_config,
    router_config,
)
from tandem.facts.blocks import CacheRoot
from tandem.facts.fleet import PlanningMode
from tandem.facts.rate_limits import RateLimits
from tandem.messages.cluster import Registered

TEXT = """
model: tandem-mini
block_size: 16
gateways: 2
serve: {port: 0, max-num-seqs: 8}
slo: {ttft: 2s}
tenants:
  - {name: acme}
pools:
  - {name: p, role: prefill, device: cpu}
  - {name: d, role: decode, device: cpu}
policies: {routing: cost, admission: threshold, dispatch: queue, planning: tandem}
"""
ROOT = CacheRoot("tandem-mini", "main", b"layout")
# What remembers.
PARTS = {
    "routing": lambda config: config.router.routing,
    "admission": lambda config: config.router.admission,
    "dispatching": lambda config: config.router.dispatching,
    "planner": lambda config: config.planning.planning,
}


def cluster(*assignments: str) -> Cluster:
    tree = parse(TEXT, "c.yaml")
    for assignment in assignments:
        override(tree, assignment)
    return as_served(checked(tree, Path()).cluster)


def config_of(cluster: Cluster) -> GatewayConfig:
    return GatewayConfig(
        "g",
        router_config(cluster, ROOT, 16, {}),
        capacity_of(cluster),
        Registered("g", 1, 1, 1),
        "tandem-mini",
        "main",
        planning=planning_config(cluster),
        limits=limit_terms(cluster, cluster.gateways),
        learning=learning_of(cluster),
    )


def applied(config: GatewayConfig, *assignments: str, plans: bool = True) -> GatewayConfig:
    return reconfigured(config, cluster(), cluster(*assignments), number=1, plans=plans)


@pytest.mark.parametrize(
    ("assignment", "changed"),
    [
        ("tenants.acme.weight=5", set()),
        ("slo.ttft=9s", set()),
        ("planning.mode=advisory", set()),
        ("policies.learning=none", set()),
        ("policies.routing=round-robin", {"routing"}),
        ("seed=4", {"routing"}),
        ("policies.admission.max_waiting_requests=3", {"admission"}),
        ("policies.admission=prediction", {"admission"}),
        ("policies.dispatch=local", {"dispatching"}),
        ("policies.transfer=pull", {"dispatching"}),
        ("policies.planning.interval_s=3s", {"planner"}),
        ("policies.forecast=last_value", {"planner"}),
    ],
)
def test_what_remembers_stays_the_same_object_unless_it_is_chosen_otherwise(assignment, changed):
    config = config_of(cluster())
    new = applied(config, assignment)
    assert {name for name, of in PARTS.items() if of(new) is not of(config)} == changed
    assert new.configuration == 1


def test_planning_that_is_as_before_is_the_same_object():
    config = config_of(cluster())
    assert applied(config, "tenants.acme.weight=5").planning is config.planning
    assert applied(config, "planning.mode=advisory").planning.mode is PlanningMode.ADVISORY
    assert applied(config, "slo.ttft=9s").planning.slo.ttft_s == 9
    assert applied(config, plans=False).planning is None
    assert applied(config, "policies.planning=static").planning is None


def test_all_else_is_as_the_new_file_has_it():
    new = applied(
        config_of(cluster()),
        "policies.learning=none",
        "tenants.acme.limits.requests_per_minute=7",
        "tenants.acme.weight=5",
        "queue.max_requests=3",
    )
    assert new.learning is None
    assert new.limits.tenants["acme"] == RateLimits(requests_per_minute=7)
    assert new.limits.gateways == 2
    assert (new.router.queue.weights, new.router.queue.max_requests) == ({"acme": 5.0}, 3)
