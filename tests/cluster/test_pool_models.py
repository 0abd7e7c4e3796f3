"""Pools that serve another model: who is answered by it, and that nobody changes models midway."""

from dataclasses import replace

import pytest

from tandem.cluster.gateway.housekeeping import migration
from tandem.cluster.router.queue import RequestQueueConfig
from tandem.facts.blocks import BlockChanges, CacheRoot
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import KvExport, KvGeometry
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.messages.cluster import Register, RegistrationRefused
from tandem.messages.gateway import PeerGone, SendToWorker
from tandem.messages.router import (
    AnnounceDegraded,
    BlocksReported,
    FailRequest,
    LoadReported,
    Reject,
    RequestSubmitted,
    WorkerDrained,
)
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
)

SMALL = "/models/small"
SMALL_ROOT = CacheRoot("small", "revision", b"layout")
ECONOMY = ServiceClass("economy", pools=("small",), model=SMALL)
USUAL = ServiceClass("usual", degrade=Degradation(service_class="economy"))
CLASSES = Classes((USUAL, ECONOMY), default="usual")
EARLY = {"admission": EarlyRejection(predictive=True)}


def small(name: str, model: str = "/elsewhere/small", **changes) -> Register:
    """A worker of the pool `small`, with a model of fewer layers."""
    geometry = KvGeometry(1, 1, 8, 4, "float32")
    export = KvExport(model, "main", geometry, 100, (), identity=SMALL_ROOT.identity)
    return register(name, pool="small", root=SMALL_ROOT, export=export, **changes)


class TwoModels(GatewayUnderTest):
    """A gateway of a cluster whose pool `small` has a model of its own."""

    def __init__(self, *workers: Register, classes: Classes = CLASSES, **router) -> None:
        super().__init__(*workers, classes=classes, pool_models={"small": SMALL}, **router)
        for each in workers:
            self.receive(idle_load(each.worker))

    @property
    def workers(self) -> dict[str, str]:
        """Where each request is; of those that wait empty."""
        return {name: state.prefill for name, state in self.machine.router.requests.items()}

    def submit(self, name: str, service_class: str = "usual", tokens: int = 40) -> list:
        request = Request(name, tuple(range(9)), SamplingParameters(max_tokens=tokens))
        return self.handle(RequestSubmitted(request, float(tokens), service_class=service_class))

    def gone(self, worker: str) -> list:
        return self.handle(PeerGone(f"{worker}/1", "it has left", died=False))


def test_what_finds_no_room_is_answered_by_the_smaller_model():
    at = TwoModels(register("w"), small("s"), **EARLY)
    for number in range(4):
        assert not of_kind(at.submit(f"r{number}"), AnnounceDegraded)
    effects = at.submit("r4")
    assert of_kind(effects, AnnounceDegraded) == [AnnounceDegraded("r4", "class=economy")]
    assert at.workers == dict.fromkeys(["r0", "r1", "r2", "r3"], "w") | {"r4": "s"}
    # With what it was admitted by, and only while there is room.
    for number in range(5, 8):
        at.submit(f"r{number}")
    (rejected,) = of_kind(at.submit("r8"), Reject)
    assert rejected.reason.startswith("worker w takes 4 sequences at a time")


def test_a_class_that_allows_it_not_is_refused():
    plain = Classes((replace(USUAL, degrade=Degradation()), ECONOMY), default="usual")
    at = TwoModels(register("w"), small("s"), classes=plain, **EARLY)
    refused = [of_kind(at.submit(f"r{number}"), Reject) for number in range(6)]
    assert [len(each) for each in refused] == [0, 0, 0, 0, 1, 1]


def test_a_shorter_answer_comes_before_another_model_and_neither_is_kept_when_refused():
    both = Degradation(max_tokens=5, service_class="economy")
    classes = Classes((replace(USUAL, degrade=both), ECONOMY), default="usual")
    at = TwoModels(register("w"), small("s"), classes=classes, **EARLY)
    # It fits when it is short.
    assert of_kind(at.submit("r", tokens=4000), AnnounceDegraded) == [
        AnnounceDegraded("r", "max_tokens=5")
    ]
    for number in range(3):
        at.submit(f"r{number}")
    # However short, there is no slot; the smaller model answers it in full.
    assert of_kind(at.submit("full"), AnnounceDegraded) == [
        AnnounceDegraded("full", "class=economy")
    ]
    state = at.machine.router.requests["full"]
    assert state.submission.request.sampling.max_tokens == 40


@pytest.mark.parametrize("degrade", ["economy", ""])
def test_who_is_sent_to_another_model_was_refused_where_it_asked_and_others_give_way(degrade):
    usual = replace(USUAL, degrade=Degradation(service_class=degrade))
    classes = Classes((usual, ServiceClass("lower", priority=9), ECONOMY), default="usual")
    breaker = BreakerTerms(window_s=6, min_requests=10, recovery_s=12)
    early = EarlyRejection(predictive=False, breaker=breaker)
    at = TwoModels(register("w"), small("s"), classes=classes, admission=early)
    for number in range(4):
        at.submit(f"l{number}", "lower")
    for number in range(40):
        at.now_ns += 300 * MS
        at.receive(LoadReported("w", 4, 0, 0, 40, 90))
        at.receive(idle_load("s"))
        at.submit(f"l-{number}", "lower")
        at.submit(f"u{number}")
        assert at.workers.get(f"u{number}", "") == ("s" if degrade else "")
        at.receive(drew("s", f"u{number}", reason=FinishReason.STOP))
    breakers = at.machine.router.admission.breakers.status()
    stages = {each.service_class: each.stage for each in breakers}
    assert stages["lower"] == "open"
    assert stages.get("economy", "closed") == "closed"


def test_a_class_with_a_model_never_falls_back_and_holds_up_nobody():
    queue = RequestQueueConfig(max_requests=2)
    at = TwoModels(register("w"), small("s-0"), small("s-1"), queue=queue)
    at.submit("e", "economy")
    first = at.workers["e"]
    at.receive(drew(first, "e"))
    at.gone(first)
    (second,) = {"s-0", "s-1"} - {first}
    assert at.workers == {"e": second}
    at.gone(second)
    assert of_kind(at.submit("f", "economy"), Reject)
    at.submit("u")
    assert at.workers == {"e": "", "u": "w"}
    at.receive(small("s-2"))
    assert at.workers == {"e": "s-2", "u": "w"}


@pytest.mark.parametrize("others", [("w",), ("w", "s-1")])
def test_a_draining_worker_hands_its_requests_to_nobody_with_another_model(others):
    made = [register(name) if name == "w" else small(name) for name in others]
    at = TwoModels(small("s-0"), *made)
    names = [f"e{number}" for number in range(len(others) + 1)]
    for name in names:
        at.submit(name, "economy")
        at.receive(drew(at.workers[name], name))
    router = at.machine.router
    router.handle(WorkerDrained("s-0"), at.now_ns)
    wanted = migration(router, at.machine.members.of_name("s-0"))
    assert (wanted.target if wanted else None) == ("s-1" if "s-1" in others else None)


def test_a_worker_whose_pool_is_gone_stays_known_for_what_it_serves():
    at = TwoModels(register("w"), small("s"))
    at.apply(router={"classes": Classes((USUAL,), default="usual")}, pool_models={})
    # Its connection broke.
    at.receive(small("s"))
    for number in range(4):
        at.submit(f"u{number}")
    assert set(at.workers.values()) == {"w"}
    at.receive(drew("w", "u0"))
    router = at.machine.router
    router.handle(WorkerDrained("w"), at.now_ns)
    assert migration(router, at.machine.members.of_name("w")) is None


@pytest.mark.parametrize("has_tokens", [False, True])
def test_when_a_model_goes_answers_that_it_began_are_not_ended_by_another(has_tokens):
    at = TwoModels(register("w"), small("s"))
    at.submit("e", "economy")
    if has_tokens:
        at.receive(drew("s", "e"))
    at.apply(router={"classes": Classes((USUAL,), default="usual")})
    assert at.workers == {"e": "s"}
    effects = at.gone("s")
    assert bool(of_kind(effects, FailRequest)) == has_tokens
    assert at.workers == ({} if has_tokens else {"e": "w"})


def test_who_waits_with_tokens_for_a_model_that_goes_fails():
    at = TwoModels(register("w"), small("s"))
    at.submit("e", "economy")
    at.receive(drew("s", "e"))
    at.submit("f", "economy")
    at.gone("s")
    effects = at.apply(router={"classes": Classes((USUAL,), default="usual")})
    assert [each.request_id for each in of_kind(effects, FailRequest)] == ["e"]
    assert at.workers == {"f": "w"}


def test_prompts_are_routed_to_where_their_prefix_is_under_each_model():
    at = TwoModels(register("w"), small("s-0"), small("s-1"))
    admission = at.machine.router.admission
    assert dict(admission.roots) == {"": register("w").root, SMALL: SMALL_ROOT}
    at.submit("e", "economy")
    state = at.machine.router.requests["e"]
    chain = list(state.chain)
    worker = state.prefill
    at.receive(drew(worker, "e", reason=FinishReason.STOP))
    at.receive(
        BlocksReported(worker, Tier.DEVICE, BlockChanges(0, (), tuple(chain), (None, *chain[:-1])))
    )
    at.now_ns += 10_000_000_000
    at.submit("again", "economy")
    at.submit("usual")
    views = {name: each.view for name, each in at.machine.router.requests.items()}
    assert views["again"].hits.keys() == {worker}
    assert not views["usual"].hits


def test_a_worker_of_another_model_than_its_pool_has_is_refused():
    at = TwoModels(register("w"))
    refusals = []
    for other in (small("s", model="model"), small("s", model="/models/smaller")):
        sent = of_kind(at.receive(other), SendToWorker)
        refusals += [each.message.reason for each in sent]
    assert refusals == [
        "s serves model, its pool /models/small",
        "s serves /models/smaller, its pool /models/small",
    ]
    strange = replace_pool(small("x"), "pool")
    (sent,) = of_kind(at.receive(strange), SendToWorker)
    assert isinstance(sent.message, RegistrationRefused)


def replace_pool(registered: Register, pool: str) -> Register:
    return register(
        registered.worker, pool=pool, root=registered.root, export=registered.export, role=Role.BOTH
    )
