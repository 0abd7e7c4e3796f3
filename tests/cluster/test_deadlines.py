"""Deadlines, from the gateway's queue to the worker: refused as soon as they cannot be kept, cut
off when they pass, and never at the cost of somebody else's turn."""

from dataclasses import replace

import pytest

from tandem.cluster.router.queue import RequestQueueConfig
from tandem.facts.fleet import Role
from tandem.facts.request import FinishReason, Request
from tandem.messages.cluster import LeasesRenewed
from tandem.messages.router import CutOff, Reject, RequestWithdrawn
from tandem.messages.worker import RequestsAborted, RequestsArrived
from tandem.policy.qos.classes import ServiceClass
from tests.cluster.cluster_parts import (
    MS,
    GatewayUnderTest,
    drew,
    idle_load,
    of_kind,
    register,
    sent_to,
)
from tests.cluster.ledger_worker import request, small_worker


def gateway(max_requests: int = 0) -> GatewayUnderTest:
    at = GatewayUnderTest(
        register("w", Role.BOTH), queue=RequestQueueConfig(max_requests=max_requests)
    )
    at.receive(idle_load("w"))
    return at


def test_who_waits_is_refused_at_the_instant_from_which_nobody_could_be_in_time():
    at = gateway(max_requests=1)
    at.submit_due("runs", None)
    begun_ns = at.now_ns
    assert not of_kind(at.submit_due("waits", 2000), Reject)
    machine = at.machine
    due_ns = machine.router.next_wakeup()
    # Eight of its nine tokens are known to the worker; the last takes some milliseconds.
    assert 1980 * MS < due_ns - begun_ns < 1995 * MS
    assert not of_kind(at.live_on(1900), Reject)
    (rejected,) = of_kind(at.live_on(200), Reject)
    assert rejected.request_id == "waits"
    assert rejected.reason.startswith("its first token was due in 2 s: it waited 1.9")
    assert rejected.reason.endswith("even on idle workers")
    assert rejected.retry_after_s >= 0.1
    assert list(machine.router.requests) == ["runs"]
    assert machine.router.next_wakeup() is None


def test_a_request_at_a_worker_is_refused_when_its_first_token_is_overdue():
    at = gateway()
    ((asked,),) = [each.requests for each in sent_to(at.submit_due("r", 500), "w", RequestsArrived)]
    # It travels as what is left of it.
    assert asked.deadline_s == pytest.approx(0.5, abs=0.01)
    effects = at.live_on(600)
    (rejected,) = of_kind(effects, Reject)
    assert rejected.reason.startswith("its first token was due in 500 ms: it waited 500 ms at wor")
    assert sent_to(effects, "w", RequestsAborted) == [RequestsAborted(("r",))]


def test_an_answer_is_cut_off_when_its_time_is_over():
    at = gateway()
    at.submit_due("r", 1000, 1000)
    at.receive(drew("w", "r"))
    assert not of_kind(at.live_on(900), CutOff)
    effects = at.live_on(200)
    assert of_kind(effects, CutOff) == [CutOff("r")]
    assert not of_kind(effects, Reject)
    assert sent_to(effects, "w", RequestsAborted) == [RequestsAborted(("r",))]
    # One that had only its first token promised goes on.
    at.submit_due("s", 300)
    at.receive(drew("w", "s"))
    assert not of_kind(at.live_on(1000), CutOff | Reject)
    assert at.machine.router.next_wakeup() is None
    assert LeasesRenewed(()) not in sent_to(effects, "w")


def test_a_client_may_shorten_the_deadline_of_its_class_and_never_lengthen_it():
    strict, none = ServiceClass("c", deadline_s=2.0), ServiceClass("c")
    assert strict.deadline_ns(5) == 5 + 2_000 * MS
    assert strict.deadline_ns(5, 1.0) == 5 + 1_000 * MS
    assert strict.deadline_ns(5, 9.0) == 5 + 2_000 * MS
    assert none.deadline_ns(5, 9.0) == 5 + 9_000 * MS
    assert none.deadline_ns(5) is None


def hurried(name: str, account: str, deadline_s: float) -> Request:
    return replace(request(name), account=account, deadline_s=deadline_s)


def test_an_account_uses_its_turns_for_what_is_due_first_and_takes_nobody_elses():
    at = small_worker()
    at.arrive(request("x"), request("y"))
    at.arrive(
        hurried("a-late", "a", 9.0),
        hurried("b", "b", 0.0),
        hurried("a-never", "a", 0.0),
        hurried("a-soon", "a", 1.0),
    )
    waiting = [each.request.request_id for each in at.machine.planner.waiting]
    assert waiting == ["a-soon", "b", "a-late", "a-never"]
    at.drain()
    assert set(at.answers) == {"x", "y", "a-late", "a-never", "a-soon", "b"}


@pytest.mark.parametrize("how", ["finished", "withdrawn"])
def test_the_deadline_of_what_has_ended_is_nothing_to_wake_up_for(how):
    at = gateway()
    at.submit_due("r", 1000, 1000)
    if how == "finished":
        at.receive(drew("w", "r", reason=FinishReason.STOP))
    else:
        at.handle(RequestWithdrawn("r"))
    assert at.machine.router.next_wakeup() is None
    assert not of_kind(at.live_on(3000), CutOff | Reject)
