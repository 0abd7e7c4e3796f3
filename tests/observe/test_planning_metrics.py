"""What a planner did, as Prometheus reads it."""

from tandem.facts.fleet import PlanningMode
from tandem.messages.gateway import ClusterStatus
from tandem.messages.planning import HeldWorker, PlanningStatus
from tandem.observe.cluster_metrics import GatewayMetrics


def exposed(planning: PlanningStatus | None) -> list[str]:
    status = ClusterStatus("g", 1.0, (), 0, 0, 0, 0, (), planning=planning)
    return GatewayMetrics("m").exposition(status).decode().splitlines()


def test_what_was_planned_is_counted():
    planning = PlanningStatus(
        "tandem",
        PlanningMode.AUTOMATIC,
        held=(HeldWorker("d-0", "drained"),),
        starts=4,
        stops=3,
        flips=2,
        migrations=1,
        failed_starts=5,
    )
    told = exposed(planning)
    for action, count in (("start", 4), ("stop", 3), ("flip", 2), ("migrate", 1)):
        name = "tandem:planned_actions_total"
        assert f'{name}{{action="{action}",model_name="m"}} {float(count)}' in told
    assert 'tandem:planned_start_failures_total{model_name="m"} 5.0' in told
    assert 'tandem:planner_held_workers{model_name="m"} 1.0' in told


def test_a_gateway_that_does_not_plan_has_no_such_metrics():
    assert not [line for line in exposed(None) if "plan" in line]
