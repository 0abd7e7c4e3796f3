"""Adapters as the router sees them: whom it takes to hold which, and that they go with their
requests wherever those go."""

from msgspec import structs

from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.router.machine import RouterMachine
from tandem.facts.adapter import Adapter
from tandem.facts.blocks import CacheRoot
from tandem.facts.fleet import Role
from tandem.facts.request import FinishReason, Request
from tandem.messages.codec import TO_WORKER
from tandem.messages.router import (
    KvReported,
    RequestSubmitted,
    SendEvent,
    TokensReported,
    WorkerJoined,
    WorkerLost,
)
from tandem.messages.worker import EmitTokens, KvComputed, PrefillsArrived, RequestsArrived
from tandem.policy.admission.policies import AdmitAll
from tandem.policy.dispatch.policies import AlwaysRemote
from tandem.policy.qos.classes import Classes, Degradation, ServiceClass
from tandem.policy.routing.policies import make_routing
from tests.cluster.cluster_parts import COST

A, B, C = (Adapter(letter * 32, f"/adapters/{letter}", 400_000_000) for letter in "abc")


def router(*roles: Role, **changed) -> RouterMachine:
    """Workers w0, w1 and so on, priced by seconds, of which each holds two adapters."""
    config = RouterConfig(
        block_size=4,
        root=CacheRoot("model", "revision", b"layout"),
        capacities={f"w{index}": Capacity(COST, 4, 1000, 64) for index in range(4)},
        routing=make_routing("cost"),
        admission=AdmitAll(),
        dispatching=AlwaysRemote(),
        held_adapters=2,
        **changed,
    )
    machine = RouterMachine(config)
    for index, role in enumerate(roles):
        machine.handle(WorkerJoined(f"w{index}", role), 0)
    return machine


def ask(machine: RouterMachine, name: str, adapter: Adapter | None) -> list:
    request = Request(name, (1, 2, 3, 4, 5), adapter=adapter)
    return machine.handle(RequestSubmitted(request, 10.0), 0)


def went_to(effects: list) -> str:
    (sent,) = [each for each in effects if isinstance(each, SendEvent)]
    assert isinstance(sent.event, RequestsArrived | PrefillsArrived)
    return sent.worker


def drew(worker: str, name: str, reason: FinishReason | None = None) -> TokensReported:
    return TokensReported(worker, EmitTokens((name,), (7,), (reason,), (False,), (0,)))


def held(machine: RouterMachine) -> dict[str, set[str]]:
    views = machine.admission.fleet.views()
    return {view.worker: {digest[0] for digest in view.adapters} for view in views}


def test_requests_go_where_their_adapter_is():
    machine = router(Role.BOTH, Role.BOTH)
    first = went_to(ask(machine, "a0", A))
    other = went_to(ask(machine, "b0", B))
    assert {first, other} == {"w0", "w1"}
    for number in range(1, 4):
        assert went_to(ask(machine, f"a{number}", A)) == first
        assert went_to(ask(machine, f"b{number}", B)) == other
    assert held(machine) == {first: {"a"}, other: {"b"}}


def test_the_one_that_was_needed_least_recently_is_taken_to_be_gone():
    machine = router(Role.BOTH)
    for number, adapter in enumerate((A, B, A, None, C)):
        ask(machine, f"r{number}", adapter)
    assert held(machine) == {"w0": {"a", "c"}}
    machine.handle(WorkerLost("w0"), 1)
    assert held(machine) == {}


def test_both_workers_of_a_pair_get_it_and_so_does_who_takes_over():
    machine = router(Role.PREFILL, Role.DECODE)
    effects = ask(machine, "r", A)
    assert held(machine) == {"w0": {"a"}, "w1": {"a"}}
    requests = [request for each in effects for request in each.event.requests]
    assert [request.adapter for request in requests] == [A]
    # It travels as it is.
    sent = TO_WORKER.decode(TO_WORKER.encode(effects[0].event))
    assert sent.requests[0].adapter == A
    assert sent.requests[0].salt != Request("r", (1, 2, 3, 4, 5)).salt
    machine.handle(KvReported("w0", KvComputed(("r",), (5,), ((),), (True,))), 1)
    machine.handle(drew("w0", "r"), 1)
    machine.handle(WorkerLost("w1"), 2)
    effects = machine.handle(WorkerJoined("w2", Role.DECODE), 3)
    again = [request for each in effects for request in getattr(each.event, "requests", ())]
    assert again
    assert all(request.adapter == A and request.output_tokens == (7,) for request in again)
    assert held(machine)["w2"] == {"a"}


def test_an_adapter_is_never_degraded_to_another_model():
    """Its matrices may have the shapes of that model's, and mean nothing there."""
    degrade = Degradation(service_class="small")
    classes = Classes(
        (
            ServiceClass("large", degrade=degrade),
            ServiceClass("small", pools=("small",), model="/small"),
        )
    )
    machine = router(Role.BOTH, classes=classes)
    front = machine.admission
    ask(machine, "r", A)
    view = machine.requests["r"].view
    assert not front._fits(view, "small")
    assert front._fits(view, "large")
    assert front._fits(structs.replace(view, adapter=""), "small")
