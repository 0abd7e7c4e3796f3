"""Rate limits in the gateway machine: calls come in as a whole, answers count as they come, what is
refused later costs nothing, and a replay decides the same."""

from collections import Counter
from dataclasses import replace

import pytest

from tandem.cluster.gateway.machine import GatewayMachine
from tandem.facts.errors import Rejection
from tandem.facts.rate_limits import CallSize, LimitTerms, RateLimits
from tandem.facts.request import FinishReason, Request
from tandem.messages.gateway import Deliver, MessageFromWorker, SendToWorker
from tandem.messages.router import (
    Explain,
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

    def ask(self, *request_ids: str, call: CallSize | None = None, tenant="acme", tokens=9) -> list:
        return self.handle(
            *(
                RequestSubmitted(
                    Request(each, tuple(range(tokens)), tenant=tenant),
                    10.0,
                    tenant=tenant,
                    call=call,
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


@pytest.mark.parametrize("how", ["finished", "withdrawn", "rejected", "broken"])
def test_a_request_takes_its_place_among_those_at_once_until_it_ends(how):
    gateway = Limited(RateLimits(concurrent_requests=1))
    gateway.ask("a")
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
