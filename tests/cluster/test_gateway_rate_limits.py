"""Rate limits in the gateway machine: calls come in as a whole, answers count as they come, what is
refused later costs nothing, and a replay decides the same."""

from collections import Counter
from dataclasses import replace

import pytest
from msgspec import structs

from tandem.cluster.gateway.machine import GatewayMachine
from tandem.cluster.gateway.rate_limits import MOST_CALLS, CallLimits
from tandem.cluster.router.use_totals import UseTotals
from tandem.facts.errors import Rejection
from tandem.facts.rate_limits import (
    CallSize,
    LimitTerms,
    RateLimits,
    background_account,
    owner_of_account,
)
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.messages.gateway import Deliver, MessageFromWorker, SendToWorker
from tandem.messages.router import (
    CutOff,
    Explain,
    LeaveOut,
    Reject,
    RequestBroken,
    RequestRefused,
    RequestSubmitted,
    RequestWithdrawn,
)
from tandem.observe.journal.pseudonyms import SessionNames, TenantNames
from tandem.observe.journal.recorder import Recorder
from tandem.observe.journal.records import decode_record
from tandem.observe.journal.replay import ReplayedHashes, compare
from tandem.policy.admission.policies import EarlyRejection
from tandem.policy.qos.classes import Classes, Degradation, ServiceClass
from tests.cluster.cluster_parts import GatewayUnderTest, drew, idle_load, of_kind, register
from tests.observe.recorded_cluster import Recorded
from tests.seeds import seeds
from tests.twin.chance_draws import World
from tests.twin.chance_run import play

SECOND = 10**9


class Limited(GatewayUnderTest):
    """A gateway with one worker, whose tenant `acme` has these limits."""

    def __init__(self, limits: RateLimits, **router) -> None:
        super().__init__(register("w"), limits=LimitTerms({"acme": limits}), **router)

    def ask(self, *request_ids: str, tenant="acme", tokens=9, **submitted) -> list:
        return self.handle(
            *(
                RequestSubmitted(
                    Request(each, tuple(range(tokens)), tenant=tenant),
                    10.0,
                    tenant=tenant,
                    **submitted,
                )
                for each in request_ids
            )
        )

    @property
    def left(self):
        return self.machine.limits.limiter.allowance("acme", self.now_ns)


def rejected(effects) -> dict[str, Rejection]:
    return {each.request_id: each.by for each in of_kind(effects, Reject)}


def test_what_goes_beyond_a_limit_never_reaches_the_router():
    gateway = Limited(RateLimits(requests_per_minute=2), explains=True)
    effects = gateway.ask("a", "b", "c")
    assert rejected(effects) == {"c": Rejection.REQUESTS}
    (reject,) = of_kind(effects, Reject)
    assert 29 < reject.retry_after_s <= 30
    assert gateway.machine.router.requests.keys() == {"a", "b"}
    told = [each for each in of_kind(effects, Explain) if each.kind == "limits"]
    assert [each.request_id for each in told] == ["c"]
    # Others have no such limit, and waiting helps.
    assert not rejected(gateway.ask("d", tenant=""))
    alive = MessageFromWorker("w/1", idle_load("w"))
    gateway.pass_time(round(reject.retry_after_s * SECOND), alive)
    assert not rejected(gateway.ask("e"))


def test_what_runs_in_the_background_has_the_same_limits_for_itself():
    at = Limited(RateLimits(requests_per_minute=2))
    batch = background_account("acme")
    for number in range(2):
        assert not of_kind(at.ask(f"b{number}", tenant=batch), Reject)
    assert of_kind(at.ask("b2", tenant=batch), Reject)
    assert not of_kind(at.ask("r0"), Reject)
    # Nobody else's, also where a replay reads them: see `TenantNames`.
    assert not of_kind(at.ask("o0", tenant=background_account("other")), Reject)
    names = TenantNames(["acme", "other"])
    assert owner_of_account(names.label(batch)) == names.label("acme")


def test_a_call_with_several_answers_comes_in_as_a_whole_or_not_at_all():
    gateway = Limited(RateLimits(requests_per_minute=5, tokens_per_minute=100))
    three = CallSize("one", 3, 9)
    assert not rejected(gateway.ask("a0", "a1", "a2", call=three))
    # Its prompt counts once.
    assert (gateway.left.requests.remaining, gateway.left.tokens.remaining) == (2, 91)
    # Its requests may come in several turns.
    refused = gateway.ask("b0", call=CallSize("two", 3, 9)) + gateway.ask("b1")
    refused += gateway.ask("b2", call=CallSize("two", 3, 9))
    assert rejected(refused) == {"b0": Rejection.REQUESTS, "b2": Rejection.REQUESTS}
    assert gateway.left.requests.remaining == 1


def test_answers_count_as_they_come_and_what_is_cancelled_has_counted():
    gateway = Limited(RateLimits(tokens_per_minute=60))
    gateway.ask("a", tokens=10)
    for _ in range(5):
        assert of_kind(gateway.receive(drew("w", "a")), Deliver)
    assert gateway.left.tokens.remaining == 45
    gateway.handle(RequestWithdrawn("a"))
    assert gateway.left.tokens.remaining == 45
    # A minute brings back all, and never more.
    gateway.now_ns += 100 * SECOND
    assert gateway.left.tokens.remaining == 60


@pytest.mark.parametrize("how", ["finished", "withdrawn", "rejected", "broken", "cut off"])
def test_a_request_takes_its_place_among_those_at_once_until_it_ends(how):
    gateway = Limited(RateLimits(concurrent_requests=1))
    gateway.ask("a", answer_due_ns=SECOND)
    assert rejected(gateway.ask("b")) == {"b": Rejection.CONCURRENT}
    match how:
        case "finished":
            gateway.receive(drew("w", "a", reason=FinishReason.STOP))
        case "withdrawn":
            gateway.handle(RequestWithdrawn("a"))
        case "rejected":
            gateway.receive(RequestRefused("w", "a", "its queue is full", 1.0))
        case "broken":
            gateway.receive(RequestBroken("w", "a", "its numbers came to NaN"))
        case "cut off":
            gateway.receive(drew("w", "a"))
            alive = MessageFromWorker("w/1", idle_load("w"))
            assert of_kind(gateway.pass_time(SECOND, alive), CutOff) == [CutOff("a")]
    assert not rejected(gateway.ask("c"))


def test_what_somebody_else_refuses_costs_nothing():
    gateway = Limited(RateLimits(requests_per_minute=10, tokens_per_minute=100))
    gateway.ask("a0", "a1", call=CallSize("one", 2, 30))
    full = gateway.receive(RequestRefused("w", "a1", "its queue is full", 1.0))
    assert rejected(full) == {"a1": Rejection.QUEUE}
    # The client gets one answer, and its other request is cancelled.
    gateway.handle(RequestWithdrawn("a0"))
    assert (gateway.left.requests.remaining, gateway.left.tokens.remaining) == (10, 100)
    gateway.ask("b", tokens=30)
    gateway.handle(RequestWithdrawn("b", rejected=True))
    # The queue had room for one of two.
    gateway.ask("c0", call=CallSize("three", 2, 30))
    gateway.handle(RequestWithdrawn("c1", rejected=True, call_id="three"), RequestWithdrawn("c0"))
    assert (gateway.left.requests.remaining, gateway.left.tokens.remaining) == (10, 100)


def test_limits_change_while_requests_run():
    gateway = Limited(RateLimits(concurrent_requests=4, requests_per_minute=10))
    gateway.ask("a", "b", "c")
    one = LimitTerms({"acme": RateLimits(concurrent_requests=3, requests_per_minute=20)})
    gateway.apply(limits=one)
    assert gateway.left.requests.remaining == 17
    assert rejected(gateway.ask("d")) == {"d": Rejection.CONCURRENT}
    gateway.apply(limits=LimitTerms())
    assert not rejected(gateway.ask("e"))
    for each in ("a", "b", "c", "e"):
        gateway.receive(drew("w", each, reason=FinishReason.STOP))
    assert gateway.machine.limits.idle


def test_a_journal_has_what_limits_depend_on_and_not_who_was_limited():
    limits = RateLimits(requests_per_minute=4, tokens_per_minute=60, concurrent_requests=3)
    gateway, turns = Limited(limits), []
    recorder = Recorder(4, TenantNames(["acme"]), SessionNames(b"key"))
    config = gateway.machine.config
    router = replace(config.router, hashes=recorder.hashes)
    gateway.machine = GatewayMachine(replace(config, router=router))
    decide = gateway.machine.handle_together

    def recorded(events, now_ns):
        effects = decide(events, now_ns)
        turns.append(recorder.turn(now_ns, events, effects))
        return effects

    gateway.machine.handle_together = recorded
    gateway.receive(register("w"))
    gateway.ask("a0", "a1", call=CallSize("chatcmpl-one", 2, 9))
    gateway.ask("b0", "b1", call=CallSize("chatcmpl-two", 2, 9))
    gateway.receive(drew("w", "a0"))
    gateway.handle(RequestWithdrawn("a1", rejected=True))
    gateway.receive(drew("w", "a0", reason=FinishReason.STOP))
    for number in range(9):
        gateway.ask(f"c{number}")
        gateway.now_ns += SECOND
    written = b"".join(turns)
    assert b"acme" not in written
    assert b"chatcmpl" not in written

    label = TenantNames(["acme"]).label("acme")
    hashes = ReplayedHashes(4)
    router = replace(config.router, hashes=hashes)
    fresh = replace(config, router=router, limits=LimitTerms({label: limits}))
    done = compare([decode_record(turn) for turn in turns], GatewayMachine(fresh), hashes, None)
    assert done.difference is None, done.difference
    assert done.rejected > 3
    # And not by chance: other limits decide otherwise.
    hashes = ReplayedHashes(4)
    other = replace(fresh, router=replace(router, hashes=hashes), limits=LimitTerms())
    assert compare(
        [decode_record(turn) for turn in turns], GatewayMachine(other), hashes, None
    ).difference


class LimitedByChance(Recorded):
    """Whose clients have one tight limit or another."""

    def gateway_config(self, name):
        config = super().gateway_config(name)
        tight = self.chance.choice(
            [
                RateLimits(requests_per_minute=200, burst_s=1.0),
                RateLimits(tokens_per_minute=900, burst_s=1.0),
                RateLimits(concurrent_requests=2),
            ]
        )
        limits = LimitTerms(others=tight)
        self.recordings[-1].config = replace(self.recordings[-1].config, limits=limits)
        return replace(config, limits=limits)


@pytest.mark.parametrize("chunk", range(seeds(1, 10)))
def test_whatever_happens_the_counts_are_right_and_a_replay_decides_the_same(chunk):
    """Machines are audited all the time."""
    by: Counter[str] = Counter()
    for seed in range(20 * chunk, 20 * chunk + 20):
        cluster = play(seed, World(), LimitedByChance).cluster
        for recording in cluster.recordings:
            done = recording.replay()
            assert done.difference is None, (seed, done.difference)
            for turn in recording.records():
                words = [each for each in turn.decisions if isinstance(each, str)]
                by.update(each.rpartition("by=")[2] for each in words if each.startswith("Reject "))
    assert by[Rejection.REQUESTS] and by[Rejection.CONCURRENT] and by[Rejection.TOKENS], by


def test_whoever_has_no_limits_is_not_remembered():
    gateway = GatewayUnderTest(register("w"))
    gateway.submit("a")
    assert gateway.machine.limits.idle
    assert not len(gateway.machine.limits.limiter)
    assert of_kind(gateway.receive(drew("w", "a")), Deliver)
    assert not of_kind(gateway.handle(RequestWithdrawn("a")), Deliver)
    assert of_kind(gateway.submit("b"), SendToWorker)


def test_each_answer_of_one_report_counts_and_so_does_each_token_of_several_steps():
    gateway = Limited(RateLimits(tokens_per_minute=60))
    gateway.ask("a", tokens=10)
    gateway.ask("b", tokens=10)
    gateway.receive(drew("w", "a", "b"))
    assert gateway.left.tokens.remaining == 38
    gateway.receive(structs.replace(drew("w", "a", "b"), repeats=5))
    assert gateway.left.tokens.remaining == 28
    assert gateway.machine.router.admission.use.of["acme"].tokens == 32


def test_answers_that_are_left_out_of_a_call_cost_nothing():
    free = ServiceClass("free", degrade=Degradation(no_n=True))
    gateway = Limited(
        RateLimits(requests_per_minute=20, concurrent_requests=8),
        admission=EarlyRejection(predictive=True),
        classes=Classes((free,), default="free"),
    )
    gateway.receive(idle_load("w"))
    call = CallSize("one", 6, 9)
    sampling = SamplingParameters(max_tokens=40)
    effects = gateway.handle(
        *(
            RequestSubmitted(
                Request(f"a{choice}", tuple(range(9)), sampling, tenant="acme", choice=choice),
                40.0,
                tenant="acme",
                service_class="free",
                call=call,
            )
            for choice in range(6)
        )
    )
    assert [each.request_id for each in of_kind(effects, LeaveOut)] == ["a4", "a5"]
    limits = gateway.machine.limits
    assert gateway.left.requests.remaining == 16
    assert limits.limiter.running() == {"acme": 4}
    # What is given back later is what was not given back then.
    limits.used_elsewhere("acme", 6, 0, gateway.now_ns)
    for name in ("a0", "a1"):
        gateway.handle(RequestWithdrawn(name, rejected=True))
        assert gateway.left.requests.remaining == 14
    assert gateway.machine.router.admission.use.of["acme"].requests == 0


def test_calls_whose_other_requests_never_come_are_forgotten():
    terms = LimitTerms({"acme": RateLimits(requests_per_minute=1_000_000)})
    limits = CallLimits(terms, UseTotals())

    def ask(call: int, choice: int) -> int:
        """Requests that are charged for it."""
        before = limits.limiter.allowance("acme", 0).requests.remaining
        request = Request(f"{call}-{choice}", (1,), tenant="acme")
        size = CallSize(str(call), 2, 1)
        limits.rejections(RequestSubmitted(request, 1.0, tenant="acme", call=size), 0)
        return before - limits.limiter.allowance("acme", 0).requests.remaining

    assert {ask(call, 0) for call in range(MOST_CALLS + 1)} == {2}
    assert ask(MOST_CALLS, 1) == ask(1, 1) == 0
    # It was the oldest.
    assert ask(0, 1) == 2
