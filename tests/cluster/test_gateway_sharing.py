"""Several gateways: what one has given out the others know an interval later, whatever messages are
lost, arrive twice or are late; a silent gateway counts for nothing."""

from random import Random

import pytest
from msgspec import structs

from tandem.cluster.router.queue import RequestQueueConfig
from tandem.facts.errors import Rejection
from tandem.facts.rate_limits import LimitTerms, RateLimits
from tandem.facts.request import FinishReason, Request
from tandem.messages.checks import BadMessage
from tandem.messages.codec import TO_WORKER
from tandem.messages.gateway import MessageFromWorker, SendToWorker
from tandem.messages.node import GatewayConnected, SendToGateway
from tandem.messages.router import Reject, RequestSubmitted, RequestWithdrawn
from tandem.messages.sharing import (
    MOST_ACCOUNTS,
    MOST_PROMPTS,
    AccountTotals,
    GatewayUse,
    RelayedFromGateway,
    RelayToGateway,
    RoutedPrompt,
    ShareUse,
    UseShared,
)
from tandem.messages.worker import RequestsArrived
from tandem.policy.qos.classes import Classes, ServiceClass
from tests.cluster.cluster_parts import (
    TERMS,
    GatewayUnderTest,
    NodeUnderTest,
    drew,
    idle_load,
    of_kind,
    register,
    sent_to,
)
from tests.seeds import seeds

WORKERS = ("v", "w")
INTERVAL_NS, SILENCE_NS = TERMS.report_interval_ns, TERMS.silence_ns


class OneOfTwo(GatewayUnderTest):
    """One of two gateways with two workers; `sent` are its messages that nobody received yet."""

    def __init__(self, name: str, limits: RateLimits | None = None, **router) -> None:
        self.sent: list[GatewayUse] = []
        super().__init__(
            *(register(each, pool=each) for each in WORKERS),
            terms=structs.replace(TERMS, gateway=name),
            limits=LimitTerms({"acme": limits} if limits else {}, gateways=2),
            **router,
        )

    def _turn(self, events) -> list:
        effects = super()._turn(events)
        messages = [each.message for each in of_kind(effects, SendToWorker)]
        # Two relays have the same message.
        uses = [each.use for each in of_kind(messages, ShareUse)]
        assert uses[::2] == uses[1::2]
        self.sent += uses[::2]
        return effects

    def wait(self, duration_ns: int = INTERVAL_NS) -> list:
        """All workers live."""
        alive = (MessageFromWorker(f"{each}/1", idle_load(each)) for each in WORKERS)
        return self.pass_time(duration_ns, *alive)

    def ask(self, request_id: str, tenant: str = "acme", tokens: int = 9, **fields) -> list:
        request = Request(request_id, tuple(range(tokens)), tenant=tenant)
        return self.handle(RequestSubmitted(request, 10.0, tenant=tenant, **fields))

    def end(self, request_id: str) -> list:
        worker = self.machine.router.requests[request_id].prefill
        return self.receive(drew(worker, request_id, reason=FinishReason.LENGTH))

    def receive_use(self, *uses: GatewayUse) -> list:
        return [each for use in uses for each in self.receive(UseShared("w", use))]

    @property
    def running(self) -> set[str]:
        """The requests at workers."""
        admission = self.machine.router.admission
        waiting = {each.request_id for each in admission.queue._queue}
        return set(self.machine.router.requests) - waiting


def pair(limits: RateLimits | None = None, **router) -> tuple[OneOfTwo, OneOfTwo]:
    """Two that have received each other."""
    found = OneOfTwo("g0", limits, **router), OneOfTwo("g1", limits, **router)
    exchange(*found, wait_ns=SILENCE_NS // 4)
    return found


def exchange(one: OneOfTwo, other: OneOfTwo, wait_ns: int = INTERVAL_NS) -> None:
    one.wait(wait_ns)
    other.wait(wait_ns)
    for sender, receiver in ((one, other), (other, one)):
        sent, sender.sent = sender.sent, []
        receiver.receive_use(*sent)


def started(effects: list) -> set[str]:
    arrived = [each for name in WORKERS for each in sent_to(effects, name, RequestsArrived)]
    return {request.request_id for each in arrived for request in each.requests}


def refused(effects: list) -> list[Rejection]:
    return [each.by for each in of_kind(effects, Reject)]


def test_a_prompt_counts_as_expected_where_another_gateway_has_sent_it():
    one, other = pair()
    one.ask("a", tokens=17)
    worker = one.machine.router.requests["a"].prefill
    exchange(one, other)
    chain = one.machine.router.requests["a"].chain
    index = other.machine.router.admission.index
    hits = index.match(chain, other.now_ns).hits
    assert {name: each.device_tokens for name, each in hits.items()} == {worker: 16}
    # Of a worker that is not there nothing is expected.
    use = GatewayUse("g0", 1, 99, 0, 0, (), (RoutedPrompt("nobody", tuple(chain)),))
    other.receive_use(use)
    assert index.match(chain, other.now_ns).hits.keys() == {worker}


def test_limits_hold_for_all_gateways_that_hear_each_other():
    limits = RateLimits(requests_per_minute=4)
    alone = OneOfTwo("g0", limits)
    assert [refused(alone.ask(str(each))) for each in range(3)] == [[], [], [Rejection.REQUESTS]]
    one, other = pair(limits)
    assert not any(refused(one.ask(str(each))) for each in range(3))
    exchange(one, other)
    assert not refused(other.ask("3"))
    assert refused(other.ask("4")) == [Rejection.REQUESTS]
    exchange(one, other)
    assert refused(one.ask("5")) == [Rejection.REQUESTS]


def test_requests_at_once_are_those_of_all_until_they_end_or_their_gateway_is_silent():
    one, other = pair(RateLimits(concurrent_requests=2))
    one.ask("a")
    one.ask("b")
    exchange(one, other)
    assert refused(other.ask("c")) == [Rejection.CONCURRENT]
    one.end("a")
    exchange(one, other)
    assert not refused(other.ask("d"))
    assert refused(other.ask("e")) == [Rejection.CONCURRENT]
    other.wait(2 * SILENCE_NS)
    assert not other.machine.sharing.others
    # What the silent one runs is not known: each gets its part.
    assert refused(other.ask("f")) == [Rejection.CONCURRENT]
    other.end("d")
    assert not refused(other.ask("g"))


def test_what_is_given_back_is_given_back_everywhere():
    one, other = pair(RateLimits(requests_per_minute=1))
    one.ask("a")
    exchange(one, other)
    assert refused(other.ask("b")) == [Rejection.REQUESTS]
    one.handle(RequestWithdrawn("a", rejected=True))
    exchange(one, other)
    assert not refused(other.ask("c"))


def test_service_at_another_gateway_counts_for_the_shares_here():
    one, other = pair(queue=RequestQueueConfig(max_requests=2))
    one.ask("a", tenant="flood", tokens=60)
    exchange(one, other)
    other.ask("x", tenant="flood")
    for number in range(3):
        other.ask(f"f{number}", tenant="flood")
        other.ask(f"s{number}", tenant="steady")
    one.ask("b", tenant="flood", tokens=60)
    one.end("a")
    exchange(one, other)
    # Both began to wait at the same level; now whoever got less goes first.
    order = []
    for _ in range(4):
        (running,) = other.running
        order.append(running)
        other.end(running)
    assert order == ["x", "s0", "s1", "s2"]


def test_nobody_saves_up_credit_while_others_are_served_elsewhere():
    one, other = pair(queue=RequestQueueConfig(max_requests=2))
    for number in range(20):
        one.ask(f"a{number}", tenant="flood", tokens=60)
        one.wait()
        if f"a{number}" in one.running:
            one.end(f"a{number}")
    exchange(one, other)
    counters = other.machine.router.admission.queue._queue._counters
    assert counters.of("flood", 0) > 100
    for request_id in ("x", "y"):
        other.ask(request_id, tenant="busy")
    other.ask("s", tenant="steady")
    assert "s" not in other.running
    assert counters.of("steady", 0) == counters.of("flood", 0)


def test_places_at_the_workers_are_shared_and_whoever_is_alone_has_them_all():
    one, other = pair(queue=RequestQueueConfig(max_requests=4))
    for number in range(8):
        one.ask(f"a{number}", tenant="flood")
    assert len(one.running) == 4
    exchange(one, other)
    # Half of them are the other one's as soon as it wants them.
    assert len(started(other.ask("b0") + other.ask("b1") + other.ask("b2"))) == 2
    exchange(one, other)
    one.end("a0")
    one.end("a1")
    assert len(one.running) == 2
    other.end("b0")
    other.end("b1")
    other.end("b2")
    exchange(one, other)
    assert len(one.running) == 4


def test_classes_with_pools_of_their_own_take_no_places_from_other_gateways():
    classes = Classes((ServiceClass("fast", pools=("v",)), ServiceClass("rest")))
    one, other = pair(queue=RequestQueueConfig(max_requests=2), classes=classes)
    for number in range(3):
        one.ask(f"f{number}", service_class="fast")
    assert one.running == {"f0", "f1", "f2"}
    exchange(one, other)
    for number in range(3):
        other.ask(f"r{number}", service_class="rest")
    assert other.running == {"r0", "r1"}


@pytest.mark.parametrize("chunk", range(seeds(2, 50)))
def test_whatever_is_lost_late_or_doubled_totals_agree_once_all_is_quiet(chunk):
    for seed in range(chunk * 10, chunk * 10 + 10):
        chance = Random(seed)
        one, other = pair(RateLimits(requests_per_minute=10_000, tokens_per_minute=10**7))
        late: list[GatewayUse] = []
        for step in range(60):
            tenant = chance.choice(["acme", "", "other"])
            one.ask(str(step), tenant, tokens=chance.randint(1, 40))
            if chance.randrange(2):
                one.end(chance.choice(sorted(one.machine.router.requests)))
            one.wait(chance.randrange(2 * INTERVAL_NS))
            sent, one.sent = one.sent, []
            for use in sent:
                late += [use] * chance.randrange(3)
            chance.shuffle(late)
            while late and chance.randrange(3):
                other.receive_use(late.pop())
            other.wait(chance.randrange(INTERVAL_NS))
        exchange(one, other, wait_ns=SILENCE_NS // 4)
        other.receive_use(*late)
        received = other.machine.sharing.others["g0"].accounts
        totals = one.machine.router.admission.use.of
        sent_of = {
            account: AccountTotals(
                account,
                each.input_tokens,
                each.output_tokens,
                each.requests,
                each.tokens,
                each.running,
                received[account].waiting,
            )
            for account, each in totals.items()
        }
        assert received == sent_of
        counters = [each.machine.router.admission.queue._queue._counters for each in (one, other)]
        assert counters[0]._service == pytest.approx(counters[1]._service)
        limiter = other.machine.limits.limiter
        assert limiter._accounts["acme"].running_elsewhere == totals["acme"].running


def test_a_gateway_that_was_started_again_begins_anew():
    _, other = pair(RateLimits(concurrent_requests=5))
    account = AccountTotals("acme", 100, 10, 3, 100, 3)
    other.receive_use(GatewayUse("g0", 50, 7, 3, 0, (account,)))
    limiter = other.machine.limits.limiter
    assert limiter._accounts["acme"].running_elsewhere == 3
    other.receive_use(GatewayUse("g0", 60, 0, 0, 0))
    assert limiter._accounts["acme"].running_elsewhere == 0
    # What its start before said, late, does not count.
    other.receive_use(GatewayUse("g0", 50, 8, 3, 0, (account,)))
    assert limiter._accounts["acme"].running_elsewhere == 0
    # Nor does what one says that has this gateway's own name.
    other.receive_use(GatewayUse("g1", 50, 8, 3, 0, (account,)))
    assert other.machine.sharing.others.keys() == {"g0"}


def test_what_was_used_before_one_is_heard_is_past():
    one = OneOfTwo("g1")
    one.receive_use(GatewayUse("g0", 5, 10_000, 0, 0, (AccountTotals("a", 10**9, 0, 0, 0, 0),)))
    counters = one.machine.router.admission.queue._queue._counters
    assert counters.of("a", 0) == 0
    one.receive_use(GatewayUse("g0", 5, 10_001, 0, 0, (AccountTotals("a", 10**9 + 7, 0, 0, 0, 0),)))
    assert counters.of("a", 0) == 7


def test_many_accounts_are_sent_of_by_turns():
    one, other = pair()
    for number in range(3 * MOST_ACCOUNTS):
        one.machine.router.admission.use.served(f"t{number}", 1, 0)
    for _ in range(8):
        exchange(one, other)
        assert all(len(each.accounts) <= MOST_ACCOUNTS for each in one.sent)
    received = other.machine.sharing.others["g0"].accounts
    assert sum(each.input_tokens for each in received.values()) == 3 * MOST_ACCOUNTS


def test_one_gateway_sends_nothing():
    gateway = GatewayUnderTest(register("w"))
    gateway.submit("a")
    effects = gateway.pass_time(SILENCE_NS // 2, MessageFromWorker("w/1", idle_load("w")))
    assert not sent_to(effects, "w", ShareUse)


def test_a_worker_relays_to_the_other_gateways_that_know_it():
    node = NodeUnderTest("g0", "g1", "g2")
    use = GatewayUse("any name", 1, 0, 0, 0)
    effects = node.receive("g1", ShareUse(use))
    assert sent_to(effects, "g1") == []
    for name in ("g0", "g2"):
        assert sent_to(effects, name) == [UseShared("w", use)]


def test_a_worker_relays_to_the_gateway_that_is_named():
    node = NodeUnderTest()
    for channel, name in (("tcp://one", "g0"), ("tcp://two", "g1"), ("tcp://three", "g2")):
        node.handle(GatewayConnected(channel))
        node.receive(channel, structs.replace(TERMS, gateway=name))
    effects = node.receive("tcp://two", RelayToGateway("g2", b"what only gateways read"))
    relayed = RelayedFromGateway("w", "g1", b"what only gateways read")
    assert of_kind(effects, SendToGateway) == [SendToGateway("tcp://three", relayed)]
    assert node.receive("tcp://two", RelayToGateway("nobody", b"")) == []


def test_messages_are_bounded():
    prompt, long = (RoutedPrompt("w", (b"0" * 16,) * blocks) for blocks in (1, 512))
    for bad in (
        GatewayUse("g", 1, 0, 0, 0, (), (prompt,) * (MOST_PROMPTS + 1)),
        GatewayUse("g", 1, 0, 0, 0, (), (long,) * 17),
        GatewayUse("g", 1, 0, 0, 0, (AccountTotals("a", 0, 0, 0, 0, 0),) * (MOST_ACCOUNTS + 1)),
        GatewayUse("g", 1, 0, 0, 0, (AccountTotals("a", -1, 0, 0, 0, 0),)),
        GatewayUse("", 1, 0, 0, 0),
    ):
        with pytest.raises(BadMessage):
            TO_WORKER.decode(TO_WORKER.encode(ShareUse(bad)))
