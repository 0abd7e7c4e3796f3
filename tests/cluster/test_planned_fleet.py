"""Whom a planner counts as its own: no spares that an operator holds, and no starts of names that
there are no more."""

from dataclasses import replace

from tandem.cluster.gateway.configuration import ConfigurationChanged
from tandem.facts.fleet import Role
from tandem.messages.gateway import DrainAsked
from tandem.policy.planning.contract import Plan
from tests.cluster.cluster_parts import register
from tests.cluster.scaled_cluster import DECODE, PREFILL, ScaledCluster
from tests.cluster.test_spares import KEEP, status, with_spares


def test_a_spare_that_an_operator_holds_is_no_spare_of_the_planners():
    cluster = with_spares(hold_s=60)
    cluster.operator(DrainAsked(1, "p-1"))
    cluster.carry_out()
    cluster.die("p-1")
    # It was told to stand by elsewhere, and the operator has not given it back here.
    cluster.gateway.receive(
        register("p-1", Role.PREFILL, accepting=False, spare=True, incarnation="9")
    )
    assert (status(cluster).spares, [each.worker for each in status(cluster).held]) == (
        ("p-1",),
        ["p-1"],
    )
    cluster.tick(KEEP)
    assert cluster.policy.seen[-1].spares == 0


def test_starts_of_names_that_there_are_no_more_are_not_wanted_any_longer():
    cluster = ScaledCluster()
    cluster.tick(Plan(prefill=2, decode=3))
    assert [each.worker for each in status(cluster).starting] == ["d-2", "p-1"]
    config = cluster.gateway.machine.config
    pools = (replace(PREFILL, workers=("p-0",)), DECODE)
    planning = replace(config.planning, pools=pools)
    changed = replace(config, planning=planning, configuration=1)
    cluster.gateway.handle(ConfigurationChanged(changed))
    assert [each.worker for each in status(cluster).starting] == ["d-2"]
    # Nobody waits for it until it counts as failed.
    cluster.tick(Plan(prefill=1, decode=3), seconds=100)
    assert "p-1" not in [each.worker for each in status(cluster).stuck]
