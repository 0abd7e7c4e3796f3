"""Faults of the gateway and of what lies in the slower tiers, in whole runs."""

from collections import Counter
from dataclasses import replace

from tandem.cost.fitted import FittedStepTime
from tandem.facts.fleet import Role, Tier
from tandem.facts.trace import TraceRow
from tandem.report.record import Ending, RunRecord
from tandem.twin.faults.entries import read_faults
from tandem.twin.faults.kinds import (
    ClientsLeave,
    Crash,
    Drained,
    Fault,
    GatewayCrash,
    Hang,
    LossyLink,
    Partition,
    TierCorrupted,
    TierFull,
    TierLost,
)
from tandem.twin.message_bus import GATEWAY
from tandem.twin.scenario import Scenario
from tandem.twin.simulation import Simulation
from tandem.twin.tier_stores import lost_share
from tests.twin.random_runs import Draw, audit
from tests.twin.small_scenarios import plain_policies, played, workers

DAMAGE = (
    Fault(1.0, TierCorrupted(Tier.REMOTE)),
    Fault(2.0, TierLost(Tier.REMOTE, 0.5)),
    Fault(2.5, TierCorrupted(Tier.HOST)),
    Fault(3.0, TierLost(Tier.DISK)),
)


def test_entries_of_a_scenario():
    entries = [
        {"at": 1, "spoil": "disk", "worker": "a"},
        {"at": 2, "lose": "remote", "share": 0.5},
        {"at": 3, "crash": "gateway", "restart": "2s"},
        {"at": 4, "crash": "a"},
        {"at": 5, "crash": "a", "silently": True},
        {"at": 6, "hang": "gateway", "for": 1},
        {"at": 7, "partition": [["gateway"], ["a"]], "for": 1},
        {"at": 8, "lossy": "a", "share": "20%"},
        {"at": 9, "fill": "disk"},
        {"at": 10, "drain": "a", "then": "decode"},
        {"at": 11, "leave": 0.5},
    ]
    faults = read_faults(entries, ("a",))
    assert faults == (
        Fault(1.0, TierCorrupted(Tier.DISK, "a")),
        Fault(2.0, TierLost(Tier.REMOTE, 0.5)),
        Fault(3.0, GatewayCrash(), 2.0),
        Fault(4.0, Crash("a")),
        Fault(5.0, Crash("a", silently=True)),
        Fault(6.0, Hang(GATEWAY), 1.0),
        Fault(7.0, Partition((GATEWAY,), ("a",)), 1.0),
        Fault(8.0, LossyLink("a", 0.2)),
        Fault(9.0, TierFull(Tier.DISK)),
        Fault(10.0, Drained("a", Role.DECODE)),
        Fault(11.0, ClientsLeave(0.5)),
    )
    assert [str(fault) for fault in faults[:3]] == [
        "tier disk corrupted at a",
        "tier remote lost 0.5 of its chains",
        "crash of the gateway for 2 s",
    ]
    assert [str(fault.cause) for fault in faults[4:]] == [
        "silent crash of a",
        "hang of gateway-0",
        "partition of gateway-0 from a",
        "links of a lose 0.2 of the transfers",
        "tier disk full",
        "drain of a to decode",
        "0.5 of the clients leave",
    ]


def test_damage_in_tiers_costs_no_request_and_no_token():
    pulled: Counter[str] = Counter()
    for seed in range(20):
        for faults in ((), DAMAGE):
            simulation = Draw(seed, changes={"faults": faults, "remote_blocks": 60}).run()
            audit(simulation)
            endings = {request.ending for request in simulation.cluster.run.requests}
            assert Ending.FAILED not in endings
            kind = "hurt" if faults else "calm"
            for transfer in simulation.cluster.run.transfers:
                if transfer.kind == "remote":
                    pulled[kind] += transfer.transfers
                    pulled[f"{kind}, lost"] += transfer.lost
    assert pulled["calm"] > pulled["hurt"] > 0, pulled


def one_worker_scenario() -> Scenario:
    """One worker with room for one long prompt, and a host tier."""
    scenario = Draw(0).scenario()
    kind = replace(
        scenario.pools[0].kind,
        cost=replace(scenario.pools[0].kind.cost, step_time=FittedStepTime(0.01, 0.0005, 0.0)),
        host_blocks=100,
        disk_blocks=0,
        block_count=15,
        max_sequences=2,
    )
    return replace(
        scenario,
        pools=(workers("w", kind),),
        policies=plain_policies(),
        remote_blocks=0,
        limit_s=60.0,
    )


def one_worker(faults: tuple[Fault, ...]) -> Simulation:
    """Two visitors with the same prompt, so far apart that the second finds the tiers only."""
    scenario = replace(one_worker_scenario(), faults=faults)
    rows = [
        TraceRow(0.0, 130, 4, tuple(range(8)), 16),
        *(TraceRow(5.0 + n, 130, 4, tuple(range(100 * n, 100 * n + 8)), 16) for n in (1, 2, 3)),
        TraceRow(20.0, 130, 4, tuple(range(8)), 16),
    ]
    return played(scenario, rows)


def test_who_reads_corrupt_blocks_drops_and_computes_them():
    calm = one_worker(()).cluster.run.requests[-1]
    assert calm.reused_tokens.get(Tier.HOST), calm
    hurt = one_worker((Fault(15.0, TierCorrupted(Tier.HOST)),))
    last = hurt.cluster.run.requests[-1]
    assert not last.reused_tokens.get(Tier.HOST)
    assert last.ending is Ending.FINISHED and last.emitted_tokens == calm.emitted_tokens
    assert last.computed_tokens == last.prompt_tokens
    (host,) = (each for each in hurt.cluster.run.transfers if each.kind == "host")
    assert host.lost == 1
    lost = one_worker((Fault(15.0, TierLost(Tier.HOST)),)).cluster.run
    assert not lost.requests[-1].reused_tokens
    # It is not reported: whoever wants to read finds out.
    (host,) = (each for each in lost.transfers if each.kind == "host")
    assert (host.transfers, host.lost) == (0, 1)


def test_requests_fail_with_their_gateway_and_the_next_find_the_caches():
    faults = (Fault(1.1, GatewayCrash(), 1.0),)
    rows = [TraceRow(0.5 * n, 120, 100, tuple(range(7)), 16) for n in range(10)]
    scenario = replace(one_worker_scenario(), faults=faults)
    simulation = Simulation(scenario, rows, RunRecord({}))
    run = simulation.run(None)
    cluster = simulation.cluster
    reasons = Counter(request.reason for request in run.requests)
    assert reasons["there is no gateway"] == 2, reasons
    assert reasons["its gateway died"] >= 1, reasons
    after = [request for request in run.requests if request.arrival_ns > 2_100_000_000]
    assert all(request.ending is not Ending.FAILED for request in after)
    assert any(request.reused_tokens.get(Tier.DEVICE) for request in after)
    assert not cluster.gateway.machine.router.requests
    for worker in cluster.workers.values():
        assert worker.worker_machine.idle


def test_a_lost_share_takes_whole_chains():
    parents = {bytes([c, n]): bytes([c, n - 1]) for c in range(64) for n in range(1, 5)}
    parents |= {bytes([c, 0]): b"root" for c in range(64)}
    digests = tuple(parents)
    lost = lost_share(digests, parents, 0.5)
    chains = Counter(digest[0] for digest in lost)
    assert set(chains.values()) == {5}
    assert 20 < len(chains) < 44
    assert lost_share(digests, parents, 1.0) == digests


def test_faults_of_channels_clients_and_operators_cost_no_answer():
    seen: Counter[str] = Counter()
    for seed in range(12):
        draw = Draw(seed)
        pools = draw.scenario().pools
        worker = pools[-1].workers()[0]
        faults = (
            Fault(0.3, Hang(GATEWAY), 0.2),
            Fault(0.6, Partition((GATEWAY,), (worker,)), 0.4),
            Fault(1.2, LossyLink(worker, 0.5), 1.0),
            Fault(1.3, TierFull(Tier.HOST), 1.0),
            Fault(1.4, Drained(worker), 0.5),
            Fault(1.5, ClientsLeave(0.3)),
            Fault(2.5, Crash(worker, silently=True), 3.0),
        )
        simulation = Draw(seed, changes={"faults": faults, "gateways": 1 + seed % 2}).run()
        audit(simulation)
        for request in simulation.cluster.run.requests:
            seen[f"{request.ending} {request.reason}".strip()] += 1
    assert seen["failed its client left"] > 5, seen
    assert {key for key in seen if key.startswith("failed")} == {"failed its client left"}, seen
    assert seen["finished"] > 50, seen
