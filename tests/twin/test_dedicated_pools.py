"""Pools that a class has to itself: nobody else goes there, a flood elsewhere does not hold it up,
and where they fail it is served by the others."""

from dataclasses import replace

import pytest

from tandem.cluster.router.queue import RequestQueueConfig
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import WorkerCost
from tandem.facts.fleet import Role
from tandem.facts.trace import TraceRow
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.report.record import Ending
from tandem.report.statistics import tpots_ns
from tandem.twin.faults.kinds import Crash, Fault
from tandem.twin.scenario import Scenario
from tests.twin.small_scenarios import BLOCK, plain_policies, played, worker_kind, workers

COST = WorkerCost(FittedStepTime(fixed_s=0.01, token_s=1e-4, decode_s=1e-3), 1.0, 512)
FAST = Classes((ServiceClass("fast", pools=("lane",)), ServiceClass("slow")), default="slow")


def cluster(queue: RequestQueueConfig | None = None, **changes) -> Scenario:
    """Two workers for all, and one that takes four sequences at a time for the class fast."""
    shared, lane = worker_kind(COST), worker_kind(COST, max_sequences=4)
    policies = plain_policies(classes=FAST, queue=queue or RequestQueueConfig())
    pools = (workers("shared", shared, 2), workers("lane", lane))
    return Scenario(pools, policies, block_size=BLOCK, context_tokens=1024, **changes)


def flood(until_s: float = 4.0) -> list[TraceRow]:
    count = round(until_s * 30)
    return [TraceRow(number / 30, 100, 60, service_class="slow") for number in range(count)]


def fast(count: int = 12, begin_s: float = 0.5) -> list[TraceRow]:
    return [TraceRow(begin_s + number / 4, 40, 20, service_class="fast") for number in range(count)]


def by_class(simulation, name: str) -> list:
    return [each for each in simulation.cluster.run.requests if each.service_class == name]


def workers_of(requests) -> set[str]:
    return {each.decode_worker for each in requests} | {each.prefill_worker for each in requests}


@pytest.mark.parametrize("most", [0, 20])
def test_a_class_and_its_pool_have_each_other_alone(most):
    rows = sorted(flood() + fast(), key=lambda row: row.arrival_s)
    simulation = played(cluster(RequestQueueConfig(max_requests=most)), rows)
    slow, quick = by_class(simulation, "slow"), by_class(simulation, "fast")
    assert workers_of(quick) == {"lane-0"}
    assert workers_of(slow) == {"shared-0", "shared-1"}
    assert all(each.ending is Ending.FINISHED for each in (*slow, *quick))
    # Its tokens come as if nobody else were there, however many wait elsewhere.
    alone = played(cluster(), fast())
    assert sorted(tpots_ns(quick)) == sorted(tpots_ns(by_class(alone, "fast")))
    assert max(tpots_ns(quick)) < min(tpots_ns(slow))


def test_who_has_a_pool_to_itself_is_served_by_the_others_while_that_is_down():
    crash = Fault(1.0, Crash("lane-0"), 1.0)
    simulation = played(cluster(faults=(crash,)), flood(3.0) + fast())
    quick = by_class(simulation, "fast")
    assert all(each.ending is Ending.FINISHED for each in quick)
    assert "lane-0" in workers_of(quick)
    assert workers_of(quick) & {"shared-0", "shared-1"}


def test_who_waits_for_workers_that_are_down_does_not_hold_up_the_others():
    downs = tuple(Fault(1.0, Crash(f"shared-{n}"), 3.0) for n in range(2))
    queue = RequestQueueConfig(max_requests=10)
    simulation = played(cluster(queue, faults=downs), flood(0.9) + fast())
    slow, quick = by_class(simulation, "slow"), by_class(simulation, "fast")
    assert all(each.ending is Ending.FINISHED for each in (*slow, *quick))
    assert workers_of(quick) == {"lane-0"}
    assert workers_of(slow) == {"shared-0", "shared-1"}
    waited_s = max(each.ttft_s for each in quick)
    assert waited_s < 0.2
    assert max(each.ttft_s for each in slow) > 2.0


def test_phases_may_have_pools_of_their_own():
    kind = worker_kind(COST)
    names = {"p": Role.PREFILL, "d": Role.DECODE, "fp": Role.PREFILL, "fd": Role.DECODE}
    pools = tuple(workers(name, kind, role=role) for name, role in names.items())
    classes = replace(FAST, classes=(ServiceClass("fast", pools=("fp", "fd")), FAST.classes[1]))
    scenario = Scenario(
        pools, plain_policies(classes=classes), block_size=BLOCK, context_tokens=1024
    )
    simulation = played(scenario, flood(1.0) + fast(4))
    assert workers_of(by_class(simulation, "fast")) == {"fp-0", "fd-0"}
    assert workers_of(by_class(simulation, "slow")) == {"p-0", "d-0"}
