"""Degradation before rejection: what the router cuts of a request that it would refuse."""

from dataclasses import replace

import pytest
from msgspec import structs

from tandem.facts.fleet import Role
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.slo import Slo
from tandem.messages.cluster import Register
from tandem.messages.router import (
    AnnounceDegraded,
    LeaveOut,
    LoadReported,
    Reject,
    RequestSubmitted,
)
from tandem.messages.worker import RequestsArrived
from tandem.policy.admission.breaker import BreakerTerms
from tandem.policy.admission.policies import EarlyRejection
from tandem.policy.qos.classes import Classes, Degradation, ServiceClass
from tests.cluster.cluster_parts import (
    MS,
    GatewayUnderTest,
    drew,
    idle_load,
    of_kind,
    register,
    sent_to,
)

ALLOWED = Degradation(no_n=True, max_tokens=5)
BREAKER = BreakerTerms(window_s=6, min_requests=10, recovery_s=12)


def gateway(degrade: Degradation, worker: Register | None = None) -> GatewayUnderTest:
    """One worker of four sequences and 400 tokens."""
    at = GatewayUnderTest(
        worker or register("w", Role.BOTH),
        admission=EarlyRejection(predictive=True),
        classes=Classes((ServiceClass("free", degrade=degrade),), default="free"),
    )
    at.receive(idle_load("w"))
    return at


def submitted(name: str, max_tokens: int, choice: int = 0, service_class="free"):
    sampling = SamplingParameters(max_tokens=max_tokens, min_tokens=min(9, max_tokens))
    request = Request(name, tuple(range(9)), sampling, choice=choice)
    return RequestSubmitted(request, float(max_tokens), service_class=service_class)


def test_an_answer_that_does_not_fit_becomes_as_short_as_its_class_allows():
    at = gateway(ALLOWED)
    effects = at.handle(submitted("r", 4000))
    assert of_kind(effects, AnnounceDegraded) == [AnnounceDegraded("r", "max_tokens=5")]
    ((sent,),) = [each.requests for each in sent_to(effects, "w", RequestsArrived)]
    assert (sent.sampling.max_tokens, sent.sampling.min_tokens) == (5, 5)
    # What fits is not touched.
    whole = at.handle(submitted("s", 40))
    assert not of_kind(whole, AnnounceDegraded)
    ((sent,),) = [each.requests for each in sent_to(whole, "w", RequestsArrived)]
    assert sent.sampling.max_tokens == 40


def test_what_shortening_does_not_help_is_refused_as_it_was():
    at = gateway(replace(ALLOWED, max_tokens=3000))
    (rejected,) = of_kind(at.handle(submitted("r", 4000)), Reject)
    (same,) = of_kind(gateway(Degradation()).handle(submitted("r", 4000)), Reject)
    assert rejected == same
    assert "4,009 tokens of prompt and answer do not fit" in rejected.reason


def test_further_answers_are_left_out_where_there_is_no_room_and_never_the_first():
    at = gateway(ALLOWED)
    calls = [submitted(f"a-{choice}", 40, choice) for choice in range(6)]
    effects = at.handle(*calls)
    assert [each.request_id for each in of_kind(effects, LeaveOut)] == ["a-4", "a-5"]
    assert not of_kind(effects, Reject)
    # A call that finds no room at all is refused.
    (rejected,) = of_kind(at.handle(submitted("b-0", 40)), Reject)
    assert rejected.request_id == "b-0"
    assert rejected.reason.startswith("worker w takes 4 sequences at a time")


def test_a_class_without_an_slo_is_shortened_before_its_breaker_refuses_it():
    classes = (
        ServiceClass("premium"),
        ServiceClass("free", priority=5, degrade=Degradation(max_tokens=5)),
    )
    at = GatewayUnderTest(
        register("w", Role.BOTH),
        admission=EarlyRejection(predictive=True, breaker=BREAKER),
        classes=Classes(classes),
    )
    at.receive(idle_load("w"))
    shortened = refused = 0
    for number in range(60):
        # What premium gets comes three times as late as promised: free gives way.
        urgent = Request(f"p{number}", tuple(range(9)))
        slo = Slo(ttft_s=0.1)
        at.handle(RequestSubmitted(urgent, 10.0, service_class="premium", slo=slo))
        effects = at.handle(submitted(f"f{number}", 40))
        refused += len(of_kind(effects, Reject))
        shortened += len(of_kind(effects, AnnounceDegraded))
        at.now_ns += 300 * MS
        at.receive(idle_load("w"))
        for name in (f"p{number}", f"f{number}"):
            at.receive(drew("w", name, reason=FinishReason.STOP))
    assert shortened > 20
    # Even shortened, they are more than the share that is left.
    assert refused > 10
    assert shortened > refused


@pytest.mark.parametrize(
    # 300 tokens of answer would fit on an idle worker, 4,000 never: that is nobody's fault.
    ("answer_tokens", "stage"),
    [(300, "open"), (4000, "closed")],
)
def test_who_could_be_served_in_full_has_less_urgent_ones_give_way(answer_tokens, stage):
    classes = (ServiceClass("premium", degrade=ALLOWED), ServiceClass("free", priority=5))
    at = GatewayUnderTest(
        register("w", Role.BOTH),
        admission=EarlyRejection(predictive=True, breaker=BREAKER),
        classes=Classes(classes),
    )
    for number in range(30):
        at.receive(LoadReported("w", 1, 0, 0, 200, 50))
        asked = submitted(f"p{number}", answer_tokens, service_class="premium")
        assert of_kind(at.handle(asked), AnnounceDegraded)
        at.handle(submitted(f"f{number}", 5))
        for name in (f"p{number}", f"f{number}"):
            at.receive(drew("w", name, reason=FinishReason.STOP))
        at.now_ns += 200 * MS
    breakers = at.machine.status(at.now_ns).breakers
    assert [(each.service_class, each.stage) for each in breakers] == [
        ("premium", "closed"),
        ("free", stage),
    ]


def test_a_class_that_allows_nothing_has_nothing_cut():
    at = gateway(Degradation())
    effects = at.handle(*(submitted(f"a-{choice}", 40, choice) for choice in range(6)))
    assert [each.request_id for each in of_kind(effects, Reject)] == ["a-4", "a-5"]
    at = gateway(ALLOWED)
    unnamed = structs.replace(submitted("r", 4000), service_class="")
    assert of_kind(at.handle(unnamed), Reject)


def test_a_further_answer_is_left_out_before_any_is_cut():
    """Though all of them would fit if they were short."""
    at = gateway(replace(ALLOWED, max_tokens=20))
    effects = at.handle(*(submitted(f"a-{choice}", 4000, choice) for choice in range(2)))
    assert of_kind(effects, AnnounceDegraded) == [AnnounceDegraded("a-0", "max_tokens=20")]
    assert [each.request_id for each in of_kind(effects, LeaveOut)] == ["a-1"]
