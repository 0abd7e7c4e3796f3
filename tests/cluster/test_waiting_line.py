"""How the line before the workers looks to whoever comes last."""

from dataclasses import replace

from tandem.cluster.router.queue import RequestQueue, RequestQueueConfig
from tandem.cluster.router.request_state import RequestState
from tandem.facts.fleet import Role
from tandem.facts.request import Request
from tandem.messages.router import RequestSubmitted
from tandem.policy.qos.classes import Classes
from tandem.policy.views import TierHits, WorkerView
from tests.cluster.router_cluster import COST

WORKERS = [
    WorkerView("d", Role.DECODE, COST, as_of_ns=0),
    WorkerView("p0", Role.PREFILL, COST, as_of_ns=0, queued_prefill_tokens=50),
    WorkerView("p1", Role.PREFILL, COST, as_of_ns=0),
]


def state(name: str, prompt_tokens: int, tenant: str = "", **hits: int) -> RequestState:
    submitted = RequestSubmitted(Request(name, (1,) * prompt_tokens), 10.0, tenant)
    made = RequestState.of(submitted, 0, 0)
    held = {worker: TierHits(tokens) for worker, tokens in hits.items()}
    made.view = replace(made.view, hits=held)
    return made


def queued(line: RequestQueue, tenant: str = "") -> list[int]:
    return [view.queued_prefill_tokens for view in line.before(WORKERS, tenant)]


def test_what_one_tenant_has_in_line_is_before_another_only_turn_by_turn():
    line = RequestQueue(RequestQueueConfig(max_requests=1), Classes())
    flood = [state(str(number), 1000, "flood") for number in range(20)]
    for each in flood:
        line.enqueue(each)
    assert queued(line, "flood") == [0, 10_050, 10_000]
    # A newcomer would be the second to go, and with one in line the fourth.
    assert queued(line, "quiet") == [0, 550, 500]
    line.enqueue(state("quiet", 400, "quiet"))
    assert queued(line, "quiet") == [0, 1250, 1200]
    for each in flood:
        line.dequeue(each)
    assert queued(line, "flood") == [0, 250, 200]


def test_those_in_line_are_shared_out_with_what_is_still_to_compute_of_them():
    line = RequestQueue(RequestQueueConfig(max_requests=1), Classes())
    assert queued(line) == [0, 50, 0]
    cold = state("cold", 1000)
    line.enqueue(cold)
    cached = state("cached", 1000, p0=300, p1=900)
    line.enqueue(cached)
    assert queued(line) == [0, 50 + 550, 550]
    # The prefix has gone meanwhile: what was counted in is what is taken out.
    cached.view = replace(cached.view, hits={})
    line.dequeue(cached)
    assert queued(line) == [0, 50 + 500, 500]
    assert line.first(0) == "cold"
    line.dequeue(cold)
    assert queued(line) == [0, 50, 0]
