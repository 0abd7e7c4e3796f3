"""Scenarios of a few workers of one kind under plain policies, for tests that know what happens in
them."""

from tandem.cost.worker import WorkerCost
from tandem.facts.fleet import Role
from tandem.facts.trace import TraceRow
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.eviction.policies import Lru
from tandem.policy.routing.policies import make_routing
from tandem.report.record import RunRecord
from tandem.twin.scenario import Policies, Pool, Scenario, WorkerKind
from tandem.twin.simulation import Simulation
from tests.twin.random_runs import audit

BLOCK = 16


def worker_kind(cost: WorkerCost, **changes) -> WorkerKind:
    fields = {
        "device": "tiny",
        "devices": 1,
        "block_count": 400,
        "max_sequences": 16,
        "batching": TokenBudgetBatching(cost.chunk_tokens),
    } | changes
    return WorkerKind(cost=cost, **fields)


def workers(name: str, kind: WorkerKind, count: int = 1, role: Role = Role.BOTH) -> Pool:
    """Never more of them, nor fewer."""
    return Pool(name, role, kind, count, count, count)


def plain_policies(routing: str = "cost", **changes) -> Policies:
    """Everybody is admitted; nothing is planned."""
    fields = {
        "admission": ADMISSIONS["none"](),
        "dispatching": DISPATCHES["remote"](),
        "eviction": Lru,
    } | changes
    return Policies(make_routing(routing, 0), **fields)


def played(scenario: Scenario, rows: list[TraceRow]) -> Simulation:
    """The whole run, audited."""
    simulation = Simulation(scenario, rows, RunRecord({}))
    simulation.run(None)
    audit(simulation)
    return simulation
