"""Small clusters with everything that may be in one, drawn from a seed, and the audit of a run."""

from dataclasses import dataclass, field, replace
from math import isclose
from random import Random

from tandem.cluster.router.queue import RequestQueueConfig
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.fleet import Role, Tier
from tandem.facts.health import Health
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.dispatch.contract import Transfer
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.eviction.policies import make_eviction
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.policy.routing.policies import ROUTINGS, make_routing
from tandem.report.record import Ending, RunRecord
from tandem.twin.faults.chance import random_faults
from tandem.twin.network.paths import NodeLinks
from tandem.twin.scenario import Policies, Pool, Scenario, WorkerKind
from tandem.twin.simulation import Simulation
from tests.twin.chance_draws import RandomPlanner

CONTEXT_TOKENS = 240
CLASSES = Classes(
    (ServiceClass("gold", priority=-1, reserved=0.5), ServiceClass("batch", priority=2)),
    tenants={"a": "gold"},
)


@dataclass(frozen=True, slots=True)
class Draw:
    """What a seed stands for. `scenario()` makes the policies anew: they serve one run."""

    seed: int
    faults: bool = False
    changes: dict = field(default_factory=dict)

    def scenario(self) -> Scenario:
        chance = Random(f"scenario {self.seed}")
        pools = _pools(chance)
        names = [name for pool in pools for name in pool.workers()[: pool.count]]
        faults = random_faults(self.seed, names, 12.0, 0.4) if self.faults else ()
        scenario = Scenario(
            pools,
            _policies(chance, pools[0].role is not Role.BOTH),
            block_size=16,
            context_tokens=CONTEXT_TOKENS,
            slo=chance.choice([Slo(), Slo(2.0, 0.05)]),
            remote_blocks=chance.choice([0, 0, 30]),
            pool_bytes_per_s=1e6,
            network_latency_s=chance.choice([0.0, 1e-5]),
            faults=faults,
            health=Health(
                report_interval_s=chance.choice([0.0, 0.3]),
                heartbeat_timeout_s=chance.choice([1.5, 10.0]),
                transfer_timeout_s=chance.choice([1.0, 60.0]),
            ),
            window_s=2.0,
            limit_s=600.0,
            explains=chance.choice([False, True]),
            # Many looks at the fleet are slow, and cut what is taken at one go short.
            timeline_points=400 if self.seed % 5 == 0 else 10,
        )
        return replace(scenario, **self.changes)

    def rows(self) -> list[TraceRow]:
        chance = Random(f"rows {self.seed}")
        spread_s = chance.choice([0.0, 1.0, 6.0])
        return [_row(chance, spread_s) for _ in range(chance.randint(5, 30))]

    def run(self) -> Simulation:
        simulation = Simulation(self.scenario(), self.rows(), RunRecord({}))
        simulation.run(None)
        return simulation


def _pools(chance: Random) -> tuple[Pool, ...]:
    kind = _kind(chance)
    if chance.randrange(3) == 0:
        count = chance.randint(1, 3)
        return (Pool("both", Role.BOTH, kind, count, count, count),)
    prefill, decode = chance.randint(1, 2), chance.randint(1, 2)
    return (
        Pool("prefill", Role.PREFILL, kind, prefill, 1, prefill + 1),
        Pool("decode", Role.DECODE, _kind(chance), decode, 1, decode),
    )


def _kind(chance: Random) -> WorkerKind:
    # Round step times make many things happen at one instant.
    step_time = FittedStepTime(
        fixed_s=chance.choice([0.002, 0.01, 0.0123]),
        token_s=chance.choice([0.0, 0.0005]),
        context_token_s=chance.choice([0.0, 1.7e-6]),
        stages=chance.choice([1, 1, 1, 2]),
    )
    tiers = {Tier.HOST: LinkCost(1e7), Tier.DISK: LinkCost(1e6), Tier.REMOTE: LinkCost(1e6)}
    max_sequences = chance.randint(1, 8)
    return WorkerKind(
        cost=WorkerCost(step_time, 100.0, 64, tiers, LinkCost(chance.choice([1e5, 1e6]))),
        device="tiny",
        devices=1,
        block_count=chance.randint(15, 40),
        max_sequences=max_sequences,
        batching=TokenBudgetBatching.on(
            "cpu" if max_sequences % 2 else "gpu", chance.choice([16, 64, 200])
        ),
        steps_in_flight=chance.randrange(2),
        links=NodeLinks(
            fabric_bytes_per_s=chance.choice([1e5, 1e6]),
            host_bytes_per_s=1e7,
            disk_read_bytes_per_s=1e6,
            disk_write_bytes_per_s=1e6,
        ),
        host_blocks=chance.choice([0, 10, 40]),
        disk_blocks=chance.choice([0, 0, 60]),
        startup_s=chance.choice([0.1, 2.0]),
    )


def _policies(chance: Random, split: bool) -> Policies:
    dispatch = chance.choice(["local", "remote", "queue", "seconds"]) if split else "remote"
    eviction = chance.choice(["lru", "fifo", "lfu"])
    return Policies(
        routing=make_routing(chance.choice(sorted(ROUTINGS)), chance.randrange(100)),
        admission=ADMISSIONS[chance.choice(["none", "none", "threshold", "load", "prediction"])](),
        dispatching=DISPATCHES[dispatch](transfer=chance.choice(list(Transfer))),
        eviction=lambda: make_eviction(eviction, 0),
        planning=RandomPlanner(Random(chance.random()), 0.5) if chance.randrange(2) else None,
        classes=chance.choice([Classes(), CLASSES]),
        queue=RequestQueueConfig(
            max_requests=chance.choice([0, 0, 4]), prefill_depth=chance.choice([0, 0, 1, 2])
        ),
    )


def _row(chance: Random, spread_s: float) -> TraceRow:
    prompt_tokens = chance.randint(1, 150)
    family, shared = chance.randrange(3), chance.randint(0, prompt_tokens // 16)
    return TraceRow(
        arrival_s=round(chance.random() * spread_s, chance.choice([1, 9])),
        prompt_tokens=prompt_tokens,
        output_tokens=chance.choice([1, chance.randint(1, 60), chance.randint(1, 60), 150]),
        block_ids=tuple(100 * family + index for index in range(shared)),
        block_tokens=16,
        session=chance.choice(["", "", "s1", "s2"]),
        think_s=chance.choice([0.0, 0.3]),
        tenant=chance.choice(["", "a", "b"]),
        service_class=chance.choice(["", "", "gold", "batch"]),
        answers=chance.choice([1, 1, 1, 3]),
    )


def audit(simulation: Simulation) -> None:
    """Everything that must hold once a run is over, whatever went wrong on the way."""
    cluster = simulation.cluster
    run, gateway = cluster.run, cluster.gateway
    _audit_requests(run, cluster.scenario.context_tokens)
    for worker in cluster.workers.values():
        worker.machine.audit()
    for node in cluster.pool_nodes.values():
        node.machine.audit()
    _audit_workers(run)
    ledger = cluster.transfers.network.ledger
    settled_bytes = ledger.finished_bytes + ledger.wasted_bytes + ledger.dropped_bytes
    arrived = cluster.transfers.network.advance(cluster.now_ns)
    moving_bytes = sum(
        each.moved_bytes
        for transfer_id, each in cluster.transfers.under_way.items()
        # It arrived at the very instant at which the run ended.
        if transfer_id not in arrived
    )
    assert isclose(ledger.started_bytes, settled_bytes + moving_bytes, abs_tol=1e-6)
    if gateway is None:
        return
    gateway.machine.audit()
    if any(request.ending is Ending.FAILED for request in run.requests):
        return
    router = gateway.machine.router
    assert not router.requests
    for name, worker in cluster.workers.items():
        if worker.hangs:
            continue
        standing = router.admission.fleet.workers[name]
        assert not standing.prefilling
        assert not standing.expected
        pool = worker.worker_machine.sequences.pool
        assert pool.free_blocks == worker.pool.kind.block_count
        assert worker.worker_machine.idle
    assert not any(router.admission.queue.in_use.values())


def _audit_requests(run: RunRecord, context_tokens: int) -> None:
    disturbed = any(worker.preemptions for worker in run.workers) or any(
        transfer.lost for transfer in run.transfers
    )
    for request in run.requests:
        assert request.ending is not None
        assert request.end_ns >= request.arrival_ns
        if request.ending is Ending.FINISHED:
            room_tokens = context_tokens - request.prompt_tokens
            assert request.emitted_tokens == min(request.output_tokens, room_tokens)
            covered = request.computed_tokens + sum(request.reused_tokens.values())
            assert covered >= request.prompt_tokens
            # Whoever goes on with one that moves computes what it said while its KV was read.
            moved = request.moved_tokens or request.prefill_worker != request.decode_worker
            behind_tokens = request.emitted_tokens if moved else 0
            again_tokens = covered - request.prompt_tokens
            assert again_tokens <= behind_tokens or disturbed or request.resumptions
        if request.ending is Ending.REJECTED:
            assert request.reason
            assert request.retry_after_s > 0
            assert not request.emitted_tokens
        assert request.emitted_tokens <= request.output_tokens
    streams = [request.emitted_tokens for request in run.requests if request.emitted_tokens]
    assert sum(run.gap_counts) == sum(streams) - len(streams)


def _audit_workers(run: RunRecord) -> None:
    for worker in run.workers:
        assert 0 <= worker.prefill_busy_ns <= worker.busy_ns <= worker.up_ns <= run.end_ns
    drawn = sum(worker.decoded_tokens for worker in run.workers)
    delivered = sum(request.emitted_tokens for request in run.requests)
    # What was drawn for a request that had been taken up elsewhere reaches nobody.
    again = any(request.resumptions for request in run.requests)
    failed = any(request.ending is Ending.FAILED for request in run.requests)
    assert drawn >= delivered if again or failed else drawn == delivered


def written(run: RunRecord) -> str:
    """All of a run but how many steps of the simulation it took."""
    return repr(
        (
            run.requests,
            run.gaps_ns,
            run.gap_counts,
            run.workers,
            run.transfers,
            run.samples,
            run.decisions,
            run.end_ns,
        )
    )
