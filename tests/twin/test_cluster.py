"""The simulated cluster drives the machines that run live: what they do by themselves happens here,
and messages may take time or go through the codec."""

from collections import Counter
from dataclasses import replace

import pytest

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.fleet import Role, Tier
from tandem.facts.health import Health
from tandem.facts.trace import TraceRow
from tandem.policy.planning.contract import FleetView, Flip, Plan
from tandem.report.record import Ending, RunRecord
from tandem.twin.event_queue import EventQueue, Timer, Turn
from tandem.twin.faults.kinds import Crash, Fault, GatewayCrash, Hang
from tandem.twin.network.paths import NodeLinks
from tandem.twin.scenario import Scenario
from tandem.twin.simulation import Simulation
from tandem.twin.transfers import Transfers
from tests.twin.random_runs import Draw, audit, written
from tests.twin.small_scenarios import BLOCK, plain_policies, played, worker_kind, workers


def scenario(**changes) -> Scenario:
    """Two workers that do both, each with a host tier."""
    tiers = {Tier.HOST: LinkCost(1e9), Tier.REMOTE: LinkCost(1e9)}
    kind = worker_kind(
        WorkerCost(FittedStepTime(0.01, 1e-4, 0.0), 100.0, 512, tiers, LinkCost(1e7)),
        block_count=64,
        max_sequences=8,
        links=NodeLinks(fabric_bytes_per_s=1e7, host_bytes_per_s=1e9),
        host_blocks=200,
    )
    made = Scenario(
        (workers("w", kind, 2),),
        plain_policies(),
        block_size=BLOCK,
        context_tokens=1000,
        limit_s=120.0,
    )
    return replace(made, **changes)


def split(scenario: Scenario, **policies) -> Scenario:
    """One of them computes prompts, two draw answers."""
    (pool,) = scenario.pools
    pools = (
        replace(pool, name="p", role=Role.PREFILL, count=1, min_count=1, max_count=1),
        replace(pool, name="d", role=Role.DECODE, count=2, min_count=1, max_count=2),
    )
    return replace(scenario, pools=pools, policies=replace(scenario.policies, **policies))


def rows(count: int, gap_s: float = 0.2, tokens: int = 60) -> list[TraceRow]:
    return [TraceRow(gap_s * n, 100, tokens, (n % 3,), BLOCK) for n in range(count)]


@pytest.mark.parametrize("seed", range(12))
def test_the_codec_of_the_wire_changes_nothing(seed):
    draw = Draw(seed, faults=seed % 2 == 0)
    plain, encoded = draw.run(), replace(draw, changes={"encodes": True}).run()
    audit(encoded)
    assert written(plain.cluster.run) == written(encoded.cluster.run)


def test_a_token_is_as_late_as_the_messages_that_bring_it():
    near = played(scenario(), rows(1)).cluster.run.requests[0]
    far = played(scenario(message_latency_s=0.05), rows(1)).cluster.run.requests[0]
    # The request to the worker, and the token back.
    assert far.first_token_ns - near.first_token_ns == 100_000_000
    assert far.emitted_tokens == near.emitted_tokens


@pytest.mark.parametrize("seed", range(6))
def test_late_messages_lose_nothing(seed):
    audit(Draw(seed, faults=True, changes={"message_latency_s": 0.003}).run())


def test_a_worker_that_hangs_is_fenced_by_the_gateway_and_comes_back_with_its_cache():
    hang = Fault(0.5, Hang("w-0"), 8.0)
    far = [TraceRow(20.0, 100, 4, (0,), BLOCK), TraceRow(20.0, 100, 4, (1,), BLOCK)]
    simulation = played(
        scenario(faults=(hang,), health=Health(heartbeat_timeout_s=3.0)), rows(4, 0.1, 100) + far
    )
    run, gateway = simulation.cluster.run, simulation.cluster.gateway
    lost = list(gateway.machine.members.lost)
    assert [name for name, _ in lost] == ["w-0"]
    assert lost[0][1].startswith("silent for 3.0 s")
    assert any(request.resumptions for request in run.requests)
    assert all(request.ending is Ending.FINISHED for request in run.requests)
    # The process went on where it stood: nothing was started anew.
    assert simulation.cluster.workers["w-0"].incarnation == "1"
    assert not any(worker.crashes for worker in run.workers)


def test_a_short_hang_is_nobody_s_death():
    hang = Fault(0.5, Hang("w-0"), 2.0)
    simulation = played(
        scenario(faults=(hang,), health=Health(heartbeat_timeout_s=3.0)), rows(4, 0.1, 100)
    )
    assert not simulation.cluster.gateway.machine.members.lost
    assert not any(request.resumptions for request in simulation.cluster.run.requests)


def test_a_new_gateway_learns_what_workers_and_pool_hold():
    faults = (Fault(3.0, GatewayCrash(), 1.0),)
    simulation = played(
        scenario(faults=faults, remote_blocks=100, pool_nodes=2),
        [*rows(6), *(TraceRow(10.0 + n, 100, 4, (n % 3,), BLOCK) for n in range(3))],
    )
    machine = simulation.cluster.gateway.machine
    assert simulation.cluster.gateway.incarnation == "2"
    assert len(list(machine.members)) == 2
    assert sorted(node.name for node in machine.pool.nodes) == ["pool-0", "pool-1"]
    late = [each for each in simulation.cluster.run.requests if each.arrival_ns > 9 * 10**9]
    assert all(each.reused_tokens for each in late)


def test_what_one_worker_computed_another_reads_from_the_pool():
    crash = Fault(3.0, Crash("w-0"), 1.0), Fault(3.0, Crash("w-1"), 1.0)
    again = [TraceRow(8.0, 100, 4, (5, 6, 7, 8), BLOCK)]
    first = [TraceRow(0.0, 100, 4, (5, 6, 7, 8), BLOCK)]
    run = played(scenario(faults=crash, remote_blocks=100), first + again).cluster.run
    assert run.requests[1].reused_tokens == {Tier.REMOTE: 64}
    kinds = {each.kind: each for each in run.transfers}
    assert kinds["to remote"].moved_bytes >= 4 * BLOCK * 100.0
    assert kinds["remote"].moved_bytes == 4 * BLOCK * 100.0


class FlipOnce:
    """A planning that wants one worker in another role, again and again."""

    interval_s = 1.0

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        del fleet, now_ns
        return Plan(flips=(Flip("d-0", "prefill"), Flip("p-0", "decode")))


def test_a_flip_is_a_drain_of_the_gateway_and_leaves_no_phase_without_a_worker():
    busy = rows(40, 0.1, 200)
    simulation = played(split(scenario(), planning=FlipOnce()), busy)
    run = simulation.cluster.run
    assert {worker.worker: worker.flips for worker in run.workers}["d-0"] == 1
    assert simulation.cluster.workers["d-0"].role is Role.PREFILL
    # Requests that were decoding there moved on before it flipped.
    counted = Counter(request.decode_worker for request in run.requests)
    assert counted["d-1"] > counted["d-0"]
    assert all(request.ending is Ending.FINISHED for request in run.requests)


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_report_is_as_old_as_its_interval(fast_forward):
    """What the gateway knows when it decides is what the worker carried when it reported last."""
    seen = []
    for interval_s in (0.0, 0.5):
        simulation = Simulation(
            scenario(health=Health(report_interval_s=interval_s), fast_forward=fast_forward),
            [TraceRow(0.0, 16, 200), TraceRow(1.3, 16, 4)],
            RunRecord({}),
        )
        cluster = simulation.cluster
        learned = []
        refresh = cluster.refresh_loads

        def note(cluster=cluster, refresh=refresh, learned=learned) -> None:
            refresh()
            fleet = cluster.gateway.machine.router.admission.fleet.workers
            learned.append(sum(each.report.context_tokens for each in fleet.values()))

        cluster.refresh_loads = note
        simulation.run(None)
        seen.append(learned[-1])
    as_of_now, as_of_then = seen
    # A token every 10.1 ms or so, three tenths of a second later.
    assert as_of_now - as_of_then in range(28, 32)


@pytest.mark.parametrize("faults", ["none", "random", "replaced"])
def test_whoever_did_not_change_need_not_be_looked_at(faults):
    """Samples and loads that come of the changed workers alone are those of all workers, and a
    worker that was not asked for a report had none to give."""
    samples = 0
    for seed in range(0, 100, 5):
        draw = Draw(seed, faults == "random")
        if faults == "replaced":
            hang = Hang(draw.scenario().pools[0].workers()[0], replaced=True)
            kill = Crash(hang.worker)
            draw.changes["faults"] = Fault(0.3, hang, 9.0), Fault(1.5, kill, 0.5)
        simulation = Simulation(draw.scenario(), draw.rows(), RunRecord({}))
        cluster, timeline = simulation.cluster, simulation._timeline
        refresh, look = cluster.refresh_loads, timeline.sample

        def refresh_and_ask_all(cluster=cluster, refresh=refresh) -> None:
            refresh()
            for worker in cluster.workers.values() if cluster.gateway else ():
                assert worker.reports_unchanged or worker.due_report(cluster.now_ns) is None
                member = cluster.gateway.machine.members.of_peer(worker.peer)
                if member and not cluster.scenario.health.report_interval_s and not worker.hangs:
                    loads = member.load, worker.loads.load(cluster.now_ns)
                    known, true = (load.context_tokens for load in loads)
                    assert known == true

        def sample_and_count(now_ns, cluster=cluster, look=look):
            nonlocal samples
            samples += 1
            sample, workers = look(now_ns), cluster.workers.values()
            loads = [worker.loads.worker_load for worker in workers]
            blocks = sum(worker.block_count for worker in workers)
            free = sum(load.free_blocks for load in loads)
            assert sample.kv_used == ((blocks - free) / blocks if blocks else 0.0)
            queued = sum(load.queued_prefill_tokens for load in loads)
            assert sample.queued_prefill_tokens == queued
            prefilling = sum(worker.role is Role.PREFILL for worker in workers)
            assert sample.prefill_workers == prefilling
            assert sample.decode_workers == len(workers) - prefilling
            return sample

        cluster.refresh_loads, timeline.sample = refresh_and_ask_all, sample_and_count
        simulation.run(None)
    assert samples > 1000


def test_nobody_knows_how_long_an_answer_will_be():
    expected = set()
    for tokens in (3, 300):
        simulation = Simulation(scenario(), rows(2, tokens=tokens), RunRecord({}))
        submitted = []
        simulation.cluster.submit = lambda event, _, found=submitted: found.append(event)
        simulation.cluster.open()
        simulation.cluster.opened()
        for turn in simulation._workload.first_turns:
            simulation._arrive(turn, 0)
        expected |= {event.expected_output_tokens for event in submitted}
    assert expected == {128.0}


def test_a_timer_fires_once_and_last_as_set():
    queue, fired = EventQueue(), []
    timer = Timer(queue, fired.append)
    timer.set(10)
    timer.set(30)
    timer.set(20)
    while queue.next_ns() is not None:
        queue.step()
    assert fired == [20]
    timer.set(40)
    timer.set(None)
    while queue.next_ns() is not None:
        queue.step()
    assert fired == [20]


def test_what_arrives_in_the_instant_in_which_it_is_stopped_ends_once():
    queue = EventQueue()
    transfers = Transfers(0, 10**12, queue)
    transfers.add_ports({"a": 1e9})
    ended, stopped = [], []
    moving = transfers.start(
        "kv", 1e9, ("a",), lambda arrived, _: ended.append(arrived), urgent=False
    )
    # Whoever stops it comes first in that instant.
    queue.at_in_order(10**9, lambda _: stopped.append(transfers.cancel(moving)), Turn.STEP, 0)
    while queue.next_ns() is not None:
        queue.step()
    assert (stopped, ended) == ([False], [True])
    assert transfers.cancel(moving) is False
