"""The router machine: where requests go, and the request queue before it."""

import pytest
from msgspec import structs

from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity, Fleet
from tandem.cluster.router.machine import RouterMachine
from tandem.cluster.router.queue import RequestQueue, RequestQueueConfig
from tandem.cluster.router.request_state import RequestState
from tandem.facts.blocks import BlockChanges, CacheRoot
from tandem.facts.errors import Rejection
from tandem.facts.fleet import Role, Tier
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.slo import IN_BACKGROUND
from tandem.messages.router import (
    AskForBlocks,
    BlocksReported,
    Explain,
    KvReported,
    LoadReported,
    MigrationsRequested,
    Reject,
    RequestRefused,
    RequestSubmitted,
    RequestWithdrawn,
    RoleTaken,
    SendEvent,
    TokensReported,
    WorkerDrained,
    WorkerJoined,
    WorkerLost,
)
from tandem.messages.worker import (
    CopiesRequested,
    EmitTokens,
    KvComputed,
    PrefillsArrived,
    RequestsAborted,
    RequestsArrived,
    TransferPinsReleased,
)
from tandem.policy.admission.policies import AdmitAll, Threshold
from tandem.policy.dispatch.contract import FirstToken, Transfer
from tandem.policy.dispatch.policies import AlwaysRemote, LongPrompts
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.policy.routing.policies import make_routing
from tandem.policy.views import TierHits, WorkerView
from tests.cluster.cluster_parts import COST


def router(*roles: Role, admission=None, **queue) -> RouterMachine:
    """Workers w0, w1 and so on are up in these roles."""
    machine = RouterMachine(
        RouterConfig(
            block_size=4,
            root=CacheRoot("model", "revision", b"layout"),
            capacities={f"w{index}": Capacity(COST, 4, 100, 4) for index in range(4)},
            routing=make_routing("round-robin", 0),
            admission=admission or AdmitAll(),
            dispatching=AlwaysRemote(),
            queue=RequestQueueConfig(**queue),
        )
    )
    for index, role in enumerate(roles):
        machine.handle(WorkerJoined(f"w{index}", role), 0)
    return machine


def submit(machine: RouterMachine, request_id: str, priority: int = 0) -> list:
    request = Request(request_id, (1, 2, 3, 4, 5), priority=priority)
    return machine.handle(RequestSubmitted(request, 10.0), 0)


def drew(worker: str, request_id: str, reason: FinishReason | None = None) -> TokensReported:
    return TokensReported(worker, EmitTokens((request_id,), (7,), (reason,), (False,), (0,)))


def sent(effects: list) -> list[tuple[str, type]]:
    return [(effect.worker, type(effect.event)) for effect in effects]


def test_a_worker_takes_both_phases_or_a_pair_takes_one_each():
    assert sent(submit(router(Role.BOTH), "r")) == [("w0", RequestsArrived)]
    assert sent(submit(router(Role.PREFILL, Role.DECODE), "r")) == [("w0", PrefillsArrived)]


def test_no_prompt_goes_to_a_worker_that_has_its_fill_while_another_has_room():
    machine = router(Role.BOTH, Role.BOTH, prefill_depth=1)
    first = sent(submit(machine, "r0"))
    # Round robin by the serial would send the third where the second still is.
    second = sent(submit(machine, "r1"))
    assert {worker for worker, _ in first + second} == {"w0", "w1"}
    assert submit(machine, "r2") == []
    busy, free = first[0][0], second[0][0]
    assert sent(machine.handle(drew(free, "r1"), 1)) == [(free, RequestsArrived)]
    assert busy != free
    assert submit(machine, "r3") == []


@pytest.mark.parametrize("bound", ["max_requests", "prefill_depth"])
def test_what_runs_in_the_background_takes_nobodys_place(bound):
    machine = router(Role.BOTH, **{bound: 1})
    assert sent(submit(machine, "b0", IN_BACKGROUND)) == [("w0", RequestsArrived)]
    assert sent(submit(machine, "r0")) == [("w0", RequestsArrived)]
    # The place is taken now: whoever waits for an answer is the next to go.
    assert submit(machine, "b1", IN_BACKGROUND) == []
    assert submit(machine, "r1") == []
    machine.handle(drew("w0", "b0"), 1)
    (effect,) = machine.handle(drew("w0", "r0", FinishReason.LENGTH), 2)[-1:]
    assert [each.request_id for each in effect.event.requests] == ["r1"]
    machine.handle(drew("w0", "r1", FinishReason.LENGTH), 3)
    assert machine.handle(drew("w0", "b0", FinishReason.LENGTH), 4) is not None
    assert machine.requests["b1"].prefill == "w0"
    machine.admission.audit(list(machine.requests.values()))


def test_nobody_is_refused_for_prompts_that_give_way():
    machine = router(Role.BOTH, admission=Threshold(max_waiting_requests=1))
    for number in range(2):
        submit(machine, f"b{number}", IN_BACKGROUND)
    assert isinstance(submit(machine, "b2", IN_BACKGROUND)[0], Reject)
    assert sent(submit(machine, "r0")) == [("w0", RequestsArrived)]
    submit(machine, "r1")
    assert isinstance(submit(machine, "r2")[0], Reject)


def test_a_dead_workers_requests_go_on_elsewhere_with_the_tokens_so_far():
    machine = router(Role.BOTH)
    submit(machine, "r")
    machine.handle(drew("w0", "r"), 1)
    assert machine.handle(WorkerLost("w0"), 2) == []
    (effect,) = machine.handle(WorkerJoined("w1", Role.BOTH), 3)
    (request,) = effect.event.requests
    assert (effect.worker, request.request_id, request.output_tokens) == ("w1", "r~1", (7,))
    # What comes late from the dead is nobody's.
    assert machine.handle(drew("w0", "r", FinishReason.LENGTH), 4) == []
    assert list(machine.requests["r"].output) == [7]


def test_withdrawn_is_called_back_wherever_it_is():
    machine = router(Role.PREFILL, Role.DECODE, max_requests=1)
    submit(machine, "r0")
    submit(machine, "r1")
    assert machine.handle(RequestWithdrawn("r1"), 1) == []
    effects = machine.handle(RequestWithdrawn("r0"), 2)
    both = [("w1", RequestsAborted), ("w1", TransferPinsReleased)]
    both += [("w0", RequestsAborted), ("w0", TransferPinsReleased)]
    assert sent(effects) == both
    assert not machine.requests
    assert machine.handle(RequestWithdrawn("r0"), 3) == []


def test_what_a_worker_refuses_is_rejected_with_its_reason():
    machine = router(Role.BOTH)
    submit(machine, "r")
    effects = machine.handle(RequestRefused("w0", "r", "too many wait", 2.5), 1)
    assert effects[-1] == Reject("r", "too many wait", 2.5, Rejection.QUEUE)
    machine.audit()
    assert not machine.requests


def test_a_drained_worker_gets_nothing_until_it_takes_a_role():
    machine = router(Role.BOTH, Role.BOTH)
    machine.handle(WorkerDrained("w0"), 1)
    assert {sent(submit(machine, f"r{n}"))[0][0] for n in range(4)} == {"w1"}
    machine.handle(RoleTaken("w0", Role.BOTH), 2)
    assert {sent(submit(machine, f"s{n}"))[0][0] for n in range(4)} == {"w0", "w1"}
    # The news of one that is gone already concerns nobody.
    for event in (WorkerDrained("w9"), RoleTaken("w9", Role.BOTH), WorkerLost("w9")):
        assert machine.handle(event, 3) == []


@pytest.mark.parametrize(("source", "target"), [("w0", "w0"), ("w0", "w9"), ("w9", "w1")])
def test_a_migration_from_or_to_nowhere_moves_nothing(source, target):
    machine = router(Role.BOTH)
    submit(machine, "r")
    machine.handle(drew("w0", "r"), 1)
    assert machine.handle(MigrationsRequested(source, target, 100), 2) == []


def test_a_migration_moves_the_largest_that_fit():
    machine = router(Role.BOTH)
    for name in ("r0", "r1", "r2"):
        submit(machine, name)
        machine.handle(drew("w0", name), 1)
    machine.handle(drew("w0", "r1"), 2)
    machine.handle(WorkerJoined("w1", Role.BOTH), 3)
    assert machine.handle(MigrationsRequested("w0", "w1", 13), 4) == [
        SendEvent("w0", CopiesRequested(("r1",))),
        SendEvent("w0", CopiesRequested(("r0",))),
    ]


def test_nobody_moves_to_a_worker_that_takes_no_decodes():
    machine = router(Role.BOTH)
    submit(machine, "r")
    machine.handle(drew("w0", "r"), 1)
    machine.handle(WorkerJoined("w1", Role.PREFILL), 2)
    machine.handle(WorkerJoined("w2", Role.BOTH), 2)
    machine.handle(WorkerDrained("w2"), 2)
    for target in ("w1", "w2"):
        assert machine.handle(MigrationsRequested("w0", target, 100), 4) == []


@pytest.mark.parametrize("at_once", [1, 7, 24, 70])
def test_output_is_charged_in_the_same_portions_however_much_is_reported_at_once(at_once):
    machine = router(Role.BOTH)
    submit(machine, "r")
    for _ in range(140 // at_once):
        machine.handle(structs.replace(drew("w0", "r"), repeats=at_once), 1)
    output_tokens = len(machine.requests["r"].output)
    assert machine.requests["r"].charged_output == output_tokens - output_tokens % 64


def test_what_is_held_for_nobody_is_let_go():
    machine = router(Role.PREFILL, Role.DECODE)
    unknown = KvComputed(("long ago",), (5,), ((0, 1),), (True,))
    assert machine.handle(KvReported("w0", unknown), 1) == [
        SendEvent("w0", TransferPinsReleased(("long ago",)))
    ]


def test_a_missed_report_is_asked_for_and_the_dead_report_nothing():
    machine = router(Role.BOTH)
    ahead = BlocksReported("w0", Tier.DEVICE, BlockChanges(3, (), (b"x",), (b"p",)))
    assert machine.handle(ahead, 1) == [AskForBlocks("w0", Tier.DEVICE)]
    machine.handle(WorkerLost("w0"), 2)
    assert machine.handle(ahead, 3) == []
    machine.handle(WorkerJoined("w0", Role.BOTH), 4)
    first = BlocksReported("w0", Tier.DEVICE, BlockChanges(0, (), (b"y",), (b"p",)))
    assert machine.handle(first, 5) == []
    assert machine.admission.index.resident_blocks == 1


WORKERS = [
    WorkerView("d", Role.DECODE, COST, as_of_ns=0),
    WorkerView("p0", Role.PREFILL, COST, as_of_ns=0, queued_prefill_tokens=50),
    WorkerView("p1", Role.PREFILL, COST, as_of_ns=0),
]


def state(
    name: str, prompt_tokens: int, tenant: str = "", service_class: str = "", **hits: int
) -> RequestState:
    submitted = RequestSubmitted(Request(name, (1,) * prompt_tokens), 10.0, tenant, service_class)
    made = RequestState.of(submitted, 0, 0)
    held = {worker: TierHits(tokens) for worker, tokens in hits.items()}
    made.view = structs.replace(made.view, hits=held)
    return made


def queued(queue: RequestQueue, tenant: str = "") -> list[int]:
    newcomer = state("newcomer", 1, tenant).view
    return [view.queued_prefill_tokens for view in queue.before(WORKERS, newcomer)]


def test_what_one_tenant_has_in_the_queue_is_before_another_only_turn_by_turn():
    queue = RequestQueue(RequestQueueConfig(max_requests=1), Classes(), Fleet({}))
    flood = [state(str(number), 1000, "flood") for number in range(20)]
    for each in flood:
        queue.enqueue(each)
    assert queued(queue, "flood") == [0, 10_050, 10_000]
    # A newcomer would be the second to go, and with one before it the fourth.
    assert queued(queue, "quiet") == [0, 550, 500]
    queue.enqueue(state("quiet", 400, "quiet"))
    assert queued(queue, "quiet") == [0, 1250, 1200]
    for each in flood:
        queue.dequeue(each)
    assert queued(queue, "flood") == [0, 250, 200]


def test_those_that_wait_are_shared_out_with_what_is_still_to_compute_of_them():
    queue = RequestQueue(RequestQueueConfig(max_requests=1), Classes(), Fleet({}))
    assert queued(queue) == [0, 50, 0]
    cold = state("cold", 1000)
    queue.enqueue(cold)
    cached = state("cached", 1000, p0=300, p1=900)
    queue.enqueue(cached)
    assert queued(queue) == [0, 50 + 550, 550]
    # The prefix has gone meanwhile: what was counted in is what is taken out.
    cached.view = structs.replace(cached.view, hits={})
    queue.dequeue(cached)
    assert queued(queue) == [0, 50 + 500, 500]
    assert queue.first(0) == "cold"
    queue.dequeue(cold)
    assert queued(queue) == [0, 50, 0]


@pytest.mark.parametrize("most", [None, 16])
@pytest.mark.parametrize("dispatch", [AlwaysRemote(), LongPrompts(["w000"], long_tokens=1)])
def test_an_explanation_has_the_best_candidates_and_the_one_chosen(most, dispatch):
    names = [f"w{index:03}" for index in range(100)]
    machine = RouterMachine(
        RouterConfig(
            block_size=4,
            root=CacheRoot("model", "revision", b"layout"),
            capacities={name: Capacity(COST, 4, 100, 4) for name in names},
            routing=make_routing("cost", 0),
            admission=AdmitAll(),
            dispatching=dispatch,
            explains=True,
            explained_candidates=most,
        )
    )
    for index, name in enumerate(names):
        machine.handle(WorkerJoined(name, (Role.PREFILL, Role.DECODE)[index % 2]), 0)
        # The later the less to do.
        machine.handle(LoadReported(name, 1, 0, 1000 * (100 - index), 100 * (100 - index), 50), 0)
    event = RequestSubmitted(Request("r", (1, 2, 3, 4, 5), priority=1), 10.0)
    effects = machine.handle(event, 0)
    (routing,) = [each for each in effects if isinstance(each, Explain) and each.kind == "routing"]
    shown = [name.split()[:2] for name, _ in routing.figures if name.endswith(" score")]
    prefills = [worker for phase, worker in shown if phase == "prefill"]
    decodes = [worker for phase, worker in shown if phase == "decode"]
    sent_to = next(each.worker for each in effects if isinstance(each, SendEvent))
    assert sent_to in prefills
    best = names[::2][-(most or 100) :]
    assert prefills == sorted({*best, sent_to})
    assert len(decodes) == (most or 50)
    assert routing.text.rpartition(" ")[2] in decodes
    figures = dict(routing.figures)
    chosen = routing.text.replace(",", "").split()[2]
    times = [figures[f"prefill {worker} ttft_s"] for worker in best]
    assert times == sorted(times, reverse=True) and len(set(times)) == len(best)
    assert figures["ttft_s"] >= figures[f"prefill {chosen} ttft_s"] == times[-1] > 0


def test_by_class_only_what_goes_before_a_request_waits_before_it():
    classes = Classes((ServiceClass("premium", 0), ServiceClass("free", 5)))
    queue = RequestQueue(RequestQueueConfig(max_requests=1), classes, Fleet({}))
    queue.enqueue(state("flood", 1000, "flood", service_class="free"))
    premium, free = (
        state("newcomer", 1, "quiet", service_class=name).view for name in ("premium", "free")
    )

    def waits(view, by_class):
        found = queue.before(WORKERS, view, by_class=by_class)
        return [each.queued_prefill_tokens for each in found]

    assert waits(premium, True) == [0, 50, 0]
    assert waits(free, True) == waits(premium, False) == [0, 550, 500]


def test_a_prompt_to_be_scored_is_in_no_cache_and_its_first_token_is_never_drawn_anew():
    wanted = SamplingParameters(prompt_logprobs=0)
    submission = RequestSubmitted(Request("a", (1, 2, 3, 4, 5), wanted), 10.0)
    state = RequestState.of(submission, 0, 0)
    state.chain = [b"block"]
    state.go("w0", "w1", Transfer.PULL)
    assert state.takes_token(None, FirstToken.RECOMPUTED)
    assert state.reusable_chain == []
    state.output.append(7)
    assert not state.takes_token(None, FirstToken.RECOMPUTED)
    assert state.reusable_chain == [b"block"]
