"""How requests end: whatever ends one, breakers, calibration and counts see it."""

from dataclasses import replace
from itertools import count

import pytest

from tandem.cluster.gateway.configuration import ConfigurationChanged
from tandem.cluster.router.queue import RequestQueueConfig
from tandem.facts.request import FinishReason, Request
from tandem.facts.slo import Slo
from tandem.messages.router import (
    CutOff,
    Reject,
    RequestBroken,
    RequestRefused,
    RequestSubmitted,
    RequestWithdrawn,
)
from tandem.policy.admission.breaker import BreakerTerms
from tandem.policy.admission.policies import EarlyRejection
from tandem.policy.qos.classes import NO_CLASSES, Classes, ServiceClass
from tests.cluster.cluster_parts import (
    MS,
    GatewayUnderTest,
    drew,
    idle_load,
    of_kind,
    register,
)

TERMS = BreakerTerms(window_s=6, min_requests=10, recovery_s=12)


def guarded(classes: Classes = NO_CLASSES) -> GatewayUnderTest:
    """A gateway with a breaker, and one worker."""
    at = GatewayUnderTest(
        register("w"), admission=EarlyRejection(predictive=True, breaker=TERMS), classes=classes
    )
    at.receive(idle_load("w"))
    return at


def submit(
    at: GatewayUnderTest,
    name: str,
    slo: Slo,
    first_ms: int | None = None,
    all_ms: int | None = None,
) -> list:
    return at.submit_due(name, first_ms, all_ms, service_class="c", slo=slo)


def stages(at: GatewayUnderTest) -> list[str]:
    return [each.stage for each in at.machine.status(at.now_ns).breakers]


@pytest.mark.parametrize(
    ("deadline_ms", "stage"),
    # The last one is a client's own wish, far from what its class promises.
    [(None, "closed"), (1000, "open"), (900, "open"), (300, "closed")],
)
def test_requests_that_a_deadline_ends_open_the_breaker(deadline_ms, stage):
    at = guarded()
    for number in range(16):
        submit(at, f"r{number}", Slo(ttft_s=1.0), deadline_ms)
        at.live_on(400)
    assert stages(at) == [stage]


def test_answers_that_are_cut_off_late_open_it_by_their_gaps():
    at = guarded()
    cut = 0
    for number in range(16):
        submit(at, f"r{number}", Slo(tpot_s=0.15), all_ms=400)
        at.receive(drew("w", f"r{number}"))
        cut += len(of_kind(at.live_on(500), CutOff))
    assert cut == 16
    (breaker,) = at.machine.status(at.now_ns).breakers
    assert breaker.stage == "open"
    assert breaker.cause.startswith("the p99 TPOT of class c was")


def calibration(at: GatewayUnderTest) -> tuple[int, int]:
    """Of those predicted to keep their SLO: how many did, and how many missed it."""
    both = at.machine.status(at.now_ns).calibration.both
    return both.keep_kept, both.keep_missed


LOOSE = Slo(ttft_s=9.0, tpot_s=9.0)


@pytest.mark.parametrize(
    ("how", "counted", "answers"),
    [
        ("finished", (1, 0), 1),
        ("satisfied", (1, 0), 1),
        ("cut off in time", (1, 0), 1),
        ("cut off late", (0, 1), 1),
        ("late", (0, 1), 0),
        ("refused", (0, 1), 0),
        ("broken", (0, 1), 0),
        ("gave way", (0, 1), 0),
        ("left", (0, 0), 0),
    ],
)
def test_every_request_that_was_let_in_is_in_the_calibration(how, counted, answers):
    at = GatewayUnderTest(register("w"))
    at.receive(idle_load("w"))
    slo = Slo(ttft_s=9.0, tpot_s=0.1) if how == "cut off late" else LOOSE
    submit(at, "r", slo, 1000, 500 if "cut off" in how else None)
    if how in ("finished", "satisfied", "left", "cut off in time", "cut off late"):
        at.receive(drew("w", "r"), drew("w", "r"))
    match how:
        case "finished":
            at.receive(drew("w", "r", reason=FinishReason.STOP))
        case "satisfied" | "gave way" | "left":
            satisfied, rejected = how == "satisfied", how == "gave way"
            at.handle(RequestWithdrawn("r", rejected=rejected, satisfied=satisfied))
        case "refused":
            at.receive(RequestRefused("w", "r", "full", 1.0))
        case "broken":
            at.receive(RequestBroken("w", "r", "no numbers"))
        case "late":
            assert of_kind(at.live_on(1100), Reject)
        case _:
            assert of_kind(at.live_on(600), CutOff)
    assert calibration(at) == counted
    assert at.machine.status(at.now_ns).finished_requests == answers
    assert not at.machine.router.requests


def test_who_is_refused_in_the_queue_counts_by_what_let_it_in():
    at = GatewayUnderTest(register("w"), queue=RequestQueueConfig(max_requests=1))
    at.receive(idle_load("w"))
    submit(at, "runs", LOOSE)
    submit(at, "waits", LOOSE, 1000)
    (rejected,) = of_kind(at.live_on(1000), Reject)
    assert rejected.request_id == "waits"
    assert calibration(at) == (0, 1)


@pytest.mark.parametrize(
    ("classes", "stage"),
    [
        (Classes((ServiceClass("c"),), tenants={"t": "c"}), "open"),
        (Classes((ServiceClass("c", deadline_s=9.0, longest_pin_s=1.0),)), "open"),
        (Classes((ServiceClass("c", priority=3),)), None),
        (Classes((ServiceClass("c", slo=Slo(ttft_s=3.0)),)), None),
        (Classes((ServiceClass("c", pools=("own",)),)), None),
        (Classes((ServiceClass("c"), ServiceClass("d"))), None),
    ],
)
def test_only_other_promises_make_a_breaker_begin_anew(classes, stage):
    at = guarded(Classes((ServiceClass("c"),)))
    for number in range(16):
        submit(at, f"r{number}", Slo(ttft_s=1.0), 1000)
        at.live_on(400)
    assert stages(at) == ["open"]
    config = at.machine.config
    router = replace(config.router, classes=classes)
    at.handle(ConfigurationChanged(replace(config, router=router, configuration=1)))
    assert stages(at) == ([] if stage is None else [stage])
    admission = replace(config.router.admission, breaker=replace(TERMS, min_requests=11))
    other = replace(router, admission=admission)
    at.handle(ConfigurationChanged(replace(config, router=other, configuration=2)))
    assert stages(at) == []


def test_what_goes_to_workers_is_predicted_anew():
    at = GatewayUnderTest(register("w"), queue=RequestQueueConfig(max_requests=1))
    at.receive(idle_load("w"))
    submit(at, "runs", LOOSE)
    submit(at, "waits", LOOSE)
    at.live_on(500)
    at.receive(drew("w", "runs", reason=FinishReason.STOP))
    forecast = at.machine.router.requests["waits"].forecast
    assert forecast.waited_s == pytest.approx(0.5, abs=0.01)


def test_what_a_request_waited_for_workers_to_come_back_counts():
    at = GatewayUnderTest(register("w"))
    at.receive(idle_load("w"))
    at.now_ns += 5000 * MS
    asked = Request("r", tuple(range(9)))
    came_ns = at.now_ns - 3000 * MS
    at.handle(RequestSubmitted(asked, 10.0, slo=Slo(ttft_s=2.0), arrived_ns=came_ns))
    at.receive(drew("w", "r", reason=FinishReason.STOP))
    both = at.machine.status(at.now_ns).calibration.both
    assert both.miss_missed == 1


def test_an_answer_is_counted_once_however_often_its_end_is_known():
    at = GatewayUnderTest(register("w"))
    at.receive(idle_load("w"))
    names = (f"r{number}" for number in count())
    for events in ([RequestWithdrawn], [RequestWithdrawn, RequestWithdrawn]):
        name = next(names)
        submit(at, name, LOOSE)
        at.receive(drew("w", name))
        at.handle(*(each(name, satisfied=True) for each in events))
        at.handle(RequestWithdrawn(name))
    assert at.machine.status(at.now_ns).finished_requests == 2
