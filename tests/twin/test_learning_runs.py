"""Whole simulated runs in which a worker is not as listed: with learning the fleet sends it less,
finds back once it is well, and does not swing."""

from collections import Counter
from random import Random

import pytest

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow
from tandem.policy.learning import Learning
from tandem.twin.faults.entries import read_faults
from tandem.twin.faults.kinds import Crash, Fault, SlowLink, Throttled
from tandem.twin.network.paths import NodeLinks
from tandem.twin.scenario import Scenario
from tests.twin.random_runs import written
from tests.twin.small_scenarios import plain_policies, played, worker_kind, workers

COST = WorkerCost(
    FittedStepTime(0.01, 1e-3, 0.0, 1e-3, 1e-6, 0.0),
    kv_bytes_per_token=1e5,
    chunk_tokens=64,
    network=LinkCost(1e9, 1e-5),
)
KIND = worker_kind(COST, links=NodeLinks(fabric_bytes_per_s=1e9))
SLO = Slo(ttft_s=0.5)


def rows(seconds: float, rate_rps: float) -> list[TraceRow]:
    chance, now_s, found = Random(5), 0.0, []
    while (now_s := now_s + chance.expovariate(rate_rps)) < seconds:
        found.append(TraceRow(now_s, chance.randint(20, 150), chance.randint(2, 20)))
    return found


def run(learning: Learning | None, *faults: Fault, pools=None, seconds: float = 60.0):
    policies = plain_policies("cost", learning=learning)
    pools = pools or (workers("w", KIND, 3),)
    scenario = Scenario(pools, policies, 16, 256, slo=SLO, faults=faults)
    return played(scenario, rows(seconds, 12.0))


def attained(simulation) -> float:
    requests = simulation.cluster.run.requests
    return sum(request.keeps(SLO) for request in requests) / len(requests)


def shares(simulation, since_s: float, until_s: float) -> dict[str, float]:
    """Of the requests that arrived in between, by the worker that computed the prompt."""
    counted = Counter(
        request.prefill_worker
        for request in simulation.cluster.run.requests
        if since_s <= request.arrival_ns / 1e9 < until_s
    )
    return {name: count / counted.total() for name, count in counted.items()}


def correction(simulation, worker: str):
    return simulation.cluster.gateway.machine.costs.correction(worker)


def test_a_fleet_that_is_as_listed_runs_the_same_to_the_byte():
    plain, learning = run(None), run(Learning())
    assert written(plain.cluster.run) == written(learning.cluster.run)


def test_a_slow_worker_is_found_and_gets_less():
    slow = Fault(0.0, Throttled("w-0", 0.25))
    plain, learning = run(None, slow), run(Learning(), slow)
    assert correction(learning, "w-0").prefill == pytest.approx(4.0, rel=0.15)
    assert str(correction(learning, "w-1")) == str(correction(learning, "w-2")) == ""
    assert shares(learning, 20, 60)["w-0"] < 0.7 * shares(plain, 20, 60)["w-0"]
    assert attained(learning) > attained(plain)
    # What is predicted is nearer to what comes.
    ratio = {s: s.cluster.run.calibration.ttft_ratios.mean for s in (plain, learning)}
    assert abs(ratio[learning] - 1) < abs(ratio[plain] - 1)


def test_a_worker_that_was_throttled_gets_its_share_again():
    throttled = Fault(10.0, Throttled("w-0", 0.1), 40.0)
    simulation = run(Learning(half_life_s=20.0), throttled, seconds=200.0)
    fair = 1 / 3
    assert shares(simulation, 25, 50).get("w-0", 0.0) < 0.5 * fair
    assert shares(simulation, 150, 200)["w-0"] > 0.8 * fair
    assert correction(simulation, "w-0").prefill == 1.0


def test_the_owner_of_a_slow_link_is_found_and_others_decode():
    pools = (workers("p", KIND, 1, Role.PREFILL), workers("d", KIND, 2, Role.DECODE))
    # 0.01 s for a prompt of 100 tokens, or 0.2 s.
    slow = Fault(0.0, SlowLink("d-0", 0.05))
    simulation = run(Learning(), slow, pools=pools, seconds=30.0)
    assert correction(simulation, "d-0").network >= 4
    assert correction(simulation, "d-1").network == correction(simulation, "p-0").network == 1.0
    late = [
        request.decode_worker
        for request in simulation.cluster.run.requests
        if request.arrival_ns > 15e9
    ]
    assert late.count("d-0") < late.count("d-1")


def test_entries_of_a_throttled_worker():
    (fault,) = read_faults([{"at": 60, "throttle": "a", "factor": "25%", "for": "2m"}], ("a",))
    assert fault == Fault(60.0, Throttled("a", 0.25), 120.0)
    assert str(fault) == "a computes at 0.25 of its speed for 120 s"
    for factor in (0, -1, 101, "fast"):
        with pytest.raises(InvalidConfiguration, match="factor must be what is left of the worker"):
            read_faults([{"at": 60, "throttle": "a", "factor": factor}])


def test_a_throttled_worker_takes_longer_and_so_does_its_next_start():
    faults = (Fault(0.0, Throttled("w-0", 0.5)), Fault(5.0, Crash("w-0"), 1.0))
    pools = (workers("w", KIND, 1),)
    plain = run(None, pools=pools, seconds=1.0)
    slow = run(None, *faults, pools=pools, seconds=1.0)
    busy = [each.cluster.run.workers[0].busy_ns for each in (plain, slow)]
    assert busy[1] > 1.5 * busy[0]
    assert slow.cluster.workers["w-0"].engine.speed == 0.5
