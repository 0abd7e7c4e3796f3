"""Operators' requests at a gateway: drains, flips, undrains, audits, and how each ends."""

import pytest

from tandem.facts.fleet import Role
from tandem.facts.request import FinishReason
from tandem.messages.cluster import (
    Audit,
    Audited,
    Deregister,
    Drain,
    NotNeeded,
    PrefixCacheEmptied,
    RoleStateReported,
    Undrain,
)
from tandem.messages.gateway import (
    AuditAsked,
    AuditEnded,
    DrainAsked,
    OperationEnded,
    PeerGone,
    PrefixCacheResetAsked,
    UndrainAsked,
)
from tandem.messages.router import LoadReported
from tandem.messages.worker import CopiesRequested, PrefixCacheReset
from tests.cluster.cluster_parts import (
    MS,
    GatewayUnderTest,
    drew,
    idle_load,
    of_kind,
    register,
    sent_to,
)

P, D = register("p", Role.PREFILL), register("d", Role.DECODE)


def two_workers() -> GatewayUnderTest:
    return GatewayUnderTest(register("w0"), register("w1"))


def drained(worker: str, role: Role = Role.BOTH) -> RoleStateReported:
    return RoleStateReported(worker, role, accepting=False)


def undrained(worker: str, role: Role = Role.BOTH) -> RoleStateReported:
    return RoleStateReported(worker, role, accepting=True)


def draining_with_requests() -> GatewayUnderTest:
    """Of two workers with two requests the first drains."""
    gateway = two_workers()
    gateway.submit("r")
    gateway.submit("s")
    gateway.receive(drew("w0", "r", "s"))
    gateway.receive(drew("w1", "r", "s"))
    gateway.receive(drained("w0"))
    return gateway


def test_a_drain_ends_when_the_worker_is_empty():
    gateway = two_workers()
    first = gateway.submit("r")
    (place,) = [name for name in ("w0", "w1") if sent_to(first, name)]
    assert sent_to(gateway.handle(DrainAsked(1, place)), place) == [Drain()]
    assert gateway.receive(drained(place)) == []
    # It still works on a request.
    assert gateway.receive(idle_load(place)) == []
    gateway.receive(drew(place, "r", reason=FinishReason.STOP))
    busy = LoadReported(place, 0, 0, 0, 0, 99)
    assert sent_to(gateway.receive(busy), place) == [NotNeeded()]
    # It may still work for another gateway.
    assert gateway.receive(busy) == []
    assert gateway.receive(idle_load(place)) == [OperationEnded(1)]
    # Nothing goes there until it is undrained.
    assert not any(sent_to(gateway.submit(f"s{n}"), place) for n in range(4))
    assert sent_to(gateway.handle(UndrainAsked(2, place)), place) == [Undrain()]
    assert OperationEnded(2) in gateway.receive(undrained(place))
    assert any(sent_to(gateway.submit(f"t{n}"), place) for n in range(4))


def test_a_flip_ends_when_the_role_is_taken():
    gateway = GatewayUnderTest(P, register("q", Role.PREFILL), D)
    gateway.handle(DrainAsked(1, "q", Drain(then_role=Role.DECODE)))
    gateway.receive(drained("q", Role.PREFILL))
    assert sent_to(gateway.receive(idle_load("q")), "q") == [NotNeeded()]
    assert gateway.receive(idle_load("q")) == []
    assert gateway.receive(undrained("q", Role.DECODE)) == [OperationEnded(1)]
    assert gateway.machine.members.of_name("q").role is Role.DECODE


def test_leaving_ends_with_deregistration():
    gateway = two_workers()
    assert sent_to(gateway.handle(DrainAsked(1, "w0", Drain(leave=True))), "w0") == [
        Drain(None, leave=True)
    ]
    gateway.receive(drained("w0"))
    assert OperationEnded(1) in gateway.receive(Deregister("w0"))


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (DrainAsked(1, "x"), "no worker is called x; there are d, p, q"),
        (UndrainAsked(1, "x"), "no worker is called x"),
        (DrainAsked(1, "d"), "without d no worker would take decode"),
        (DrainAsked(1, "d", Drain(leave=True)), "without d no worker would take decode"),
        (
            DrainAsked(1, "d", Drain(then_role=Role.PREFILL)),
            "without d no worker would take decode",
        ),
        (DrainAsked(1, "p", Drain(then_role=Role.PREFILL)), "p is a prefill worker already"),
        (UndrainAsked(1, "p"), "p takes requests already"),
    ],
)
def test_what_would_break_the_cluster_or_means_nothing_is_refused(event, words):
    gateway = GatewayUnderTest(P, register("q", Role.PREFILL), D)
    (ended,) = gateway.handle(event)
    assert words in ended.problem


def test_a_worker_is_drained_once_at_a_time():
    gateway = GatewayUnderTest(P, register("q", Role.PREFILL), D)
    gateway.handle(DrainAsked(1, "q"))
    (ended,) = gateway.handle(DrainAsked(2, "q", Drain(leave=True)))
    assert (ended.operation_id, "being drained already" in ended.problem) == (2, True)
    # The last one that prefills must stay meanwhile.
    gateway.receive(drained("q", Role.PREFILL))
    (ended,) = gateway.handle(DrainAsked(3, "p"))
    assert "no worker would take prefill" in ended.problem


def test_an_operation_ends_with_a_problem_when_its_worker_dies():
    gateway = two_workers()
    gateway.handle(DrainAsked(1, "w0"))
    (ended,) = of_kind(gateway.handle(PeerGone("w0/1", "died")), OperationEnded)
    assert "w0 is gone: died" in ended.problem


def test_a_drain_that_another_gateway_calls_off_ends_with_a_problem():
    gateway = two_workers()
    gateway.handle(DrainAsked(1, "w0"))
    # Sent before it had received the drain.
    assert not of_kind(gateway.receive(undrained("w0")), OperationEnded)
    gateway.receive(drained("w0"))
    (ended,) = of_kind(gateway.receive(undrained("w0")), OperationEnded)
    assert "was undrained" in ended.problem


def test_a_worker_leaves_and_comes_back():
    gateway = two_workers()
    effects = gateway.handle(DrainAsked(1, "w0", Drain(leave=True, again=True)))
    assert sent_to(effects, "w0") == [Drain(None, leave=True, again=True)]
    gateway.receive(drained("w0"))
    assert of_kind(gateway.receive(Deregister("w0")), OperationEnded) == [OperationEnded(1)]


def test_a_drain_that_was_not_received_is_sent_again():
    gateway = two_workers()
    gateway.handle(DrainAsked(1, "w0", Drain(leave=True)))
    assert sent_to(gateway.receive(register("w0")), "w0")[-1] == Drain(None, leave=True)
    gateway.receive(drained("w0"))
    assert sent_to(gateway.receive(idle_load("w0")), "w0") == [NotNeeded()]
    # It forgets the gateway, not that it drains: it is let go anew.
    effects = gateway.receive(register("w0", accepting=False))
    assert not sent_to(effects, "w0", Drain)
    assert sent_to(gateway.receive(idle_load("w0")), "w0") == [NotNeeded()]


def test_a_draining_workers_requests_go_on_elsewhere():
    gateway = draining_with_requests()
    effects = gateway.receive(idle_load("w0"))
    (copied,) = sent_to(effects, "w0", CopiesRequested)
    assert copied.request_ids in {("r",), ("s",)}
    state = gateway.machine.router.requests[copied.request_ids[0]]
    assert (state.prefill, state.decode) == ("w0", "w1")


def test_a_draining_workers_requests_wait_for_a_target_that_can_take_them():
    """However long it takes: what moved nobody was no attempt."""
    gateway = draining_with_requests()
    full = LoadReported("w1", 0, 0, 0, 0, 0)
    for _ in range(20):
        gateway.receive(full)
        assert sent_to(gateway.receive(idle_load("w0")), "w0") == []
    gateway.receive(idle_load("w1"))
    assert sent_to(gateway.receive(idle_load("w0")), "w0", CopiesRequested)


def test_a_flip_and_an_undrain_that_were_both_lost_both_end():
    """A connection broke after the orders were sent."""
    gateway = two_workers()
    gateway.handle(DrainAsked(1, "w0"))
    effects = gateway.receive(drained("w0"), idle_load("w0"))
    assert of_kind(effects, OperationEnded) == [OperationEnded(1)]
    gateway.handle(DrainAsked(2, "w0", Drain(then_role=Role.PREFILL)))
    gateway.handle(UndrainAsked(3, "w0"))
    effects = gateway.receive(register("w0", accepting=False))
    assert sent_to(effects, "w0", Undrain)
    effects = gateway.receive(undrained("w0"))
    ended = {effect.operation_id: effect.problem for effect in of_kind(effects, OperationEnded)}
    assert ended.keys() == {2, 3}, ended
    assert not ended[3]
    assert "was undrained" in ended[2]


def test_an_audit_asks_everybody_and_ends_when_all_have_answered_or_nobody_waits_longer():
    gateway = two_workers()
    effects = gateway.handle(AuditAsked(1))
    assert sent_to(effects, "w0") == sent_to(effects, "w1") == [Audit()]
    w0, w1 = (Audited(name, 0, 0, 0, 0, 0, 0, 0, 0, "") for name in ("w0", "w1"))
    assert gateway.receive(w1) == []
    assert gateway.receive(w0) == [AuditEnded(1, (w0, w1))]
    gateway.handle(AuditAsked(2))
    gateway.receive(w0)
    (ended,) = of_kind(gateway.handle(PeerGone("w1/1", "died")), AuditEnded)
    assert ended == AuditEnded(2, (w0,))
    gateway.handle(AuditAsked(3))
    asked_ns = gateway.now_ns
    while not (ended := of_kind(gateway.pass_time(300 * MS), AuditEnded)):
        gateway.receive(idle_load("w0"))
        assert gateway.now_ns - asked_ns < 2_000 * MS
    assert ended == [AuditEnded(3, (), "no answer from w0")]
    assert GatewayUnderTest().handle(AuditAsked(4)) == [AuditEnded(4, ())]


def test_a_reset_reaches_everybody_and_is_done_when_all_have_answered():
    gateway = two_workers()
    effects = gateway.handle(PrefixCacheResetAsked(1, external=True))
    assert sent_to(effects, "w0") == sent_to(effects, "w1") == [PrefixCacheReset(external=True)]
    # An audit under way has answers of its own.
    gateway.handle(AuditAsked(2))
    assert gateway.receive(PrefixCacheEmptied("w1")) == []
    assert gateway.receive(PrefixCacheEmptied("w0")) == [OperationEnded(1)]
    gateway.handle(PrefixCacheResetAsked(3))
    gateway.receive(PrefixCacheEmptied("w0"))
    ended = of_kind(gateway.handle(PeerGone("w1/1", "died")), OperationEnded)
    assert ended == [OperationEnded(3, "w1 is gone")]


def test_broken_invariants_are_reported_to_the_auditor():
    gateway = GatewayUnderTest()
    gateway.machine.router.admission.queue.in_use["nobody"] = 3
    (ended,) = gateway.machine.handle(AuditAsked(1), 5)
    assert "an invariant does not hold at AdmissionFront.audit" in ended.problem
