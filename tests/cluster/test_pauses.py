"""Pauses of sessions at a gateway: whom it tells what and when, what it learns, and what it
forgets."""

from dataclasses import replace

import pytest

from tandem.cluster.gateway.learned_pauses import LearnedPauses
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.cluster.gateway.pauses import PauseConfig
from tandem.facts.blocks import BlockChanges, extend_chain
from tandem.facts.fleet import Tier
from tandem.facts.kv import TierFigures
from tandem.facts.request import FinishReason, Request, session_key
from tandem.messages.cluster import PinBlocks, TiersReported
from tandem.messages.gateway import ToolsCalled
from tandem.messages.router import (
    BlocksReported,
    FollowedPause,
    RequestSubmitted,
    RequestWithdrawn,
)
from tandem.messages.worker import SessionPaused, SessionReturning
from tests.cluster.cluster_parts import (
    MS,
    ROOT,
    GatewayUnderTest,
    drew,
    idle_load,
    register,
    sent_to,
)

S = 1_000_000_000
KEY = session_key("acme", "agent")


def gateway_with_tiers(*names: str, learns: bool = True) -> GatewayUnderTest:
    gateway = GatewayUnderTest()
    config = replace(gateway.machine.config, pauses=PauseConfig(learns))
    gateway.machine = GatewayMachine(config)
    for name in names or ("w",):
        gateway.receive(register(name), idle_load(name))
        gateway.receive(TiersReported(name, (TierFigures(Tier.HOST, True, 0, 100),)))
    return gateway


def ask(gateway: GatewayUnderTest, request_id: str, announced_s: float | None = None) -> list:
    announced_ns = None if announced_s is None else round(announced_s * S)
    request = Request(request_id, tuple(range(9)), account="acme", session=KEY)
    pause = FollowedPause(60 * S, announced_ns)
    return gateway.handle(
        RequestSubmitted(request, 10.0, tenant="acme", session="agent", pause=pause)
    )


def answer(gateway: GatewayUnderTest, request_id: str) -> list:
    return gateway.receive(drew("w", request_id, reason=FinishReason.STOP))


def silence(gateway: GatewayUnderTest, seconds: float) -> list:
    """Nothing happens for so long but heartbeats."""
    effects = []
    for _ in range(round(seconds * 10)):
        effects += gateway.pass_time(100 * MS)
        effects += gateway.receive(idle_load("w"))
    return effects


def chain() -> tuple[bytes, ...]:
    digests: list[bytes] = []
    extend_chain(digests, ROOT.hash(""), tuple(range(9)), 4)
    return tuple(digests)


def hold_in_host(gateway: GatewayUnderTest) -> None:
    parents = (ROOT.hash(""), *chain())[:-1]
    gateway.receive(BlocksReported("w", Tier.HOST, BlockChanges(0, (), chain(), parents)))


def test_an_announced_pause_makes_room_at_once_and_is_over_in_time():
    gateway = gateway_with_tiers()
    ask(gateway, "r", announced_s=8.0)
    told = answer(gateway, "r")
    (paused,) = sent_to(told, "w", SessionPaused)
    (pin,) = sent_to(told, "w", PinBlocks)
    assert paused == SessionPaused(KEY, 8 * S)
    assert (pin.digests, pin.ttl_ns) == (chain(), 21 * S)
    hold_in_host(gateway)
    assert not sent_to(silence(gateway, 7.0), "w", SessionReturning)
    (back,) = sent_to(silence(gateway, 0.8), "w", SessionReturning)
    assert (back.session, back.digests, back.root) == (KEY, chain(), ROOT.hash(""))
    assert 0 < back.return_in_ns < S
    assert not sent_to(silence(gateway, 5.0), "w", SessionReturning), "once"
    ask(gateway, "r2")
    status = gateway.machine.status(gateway.now_ns).pauses
    assert (status.followed, status.announced, status.prefetches, status.after) == (1, 1, 1, 1)
    assert status.error_s == pytest.approx(4.8, abs=0.01)


def test_who_is_back_early_or_has_nothing_below_gets_no_prefetch():
    gateway = gateway_with_tiers()
    ask(gateway, "r", announced_s=8.0)
    answer(gateway, "r")
    assert not sent_to(silence(gateway, 9.0), "w", SessionReturning), "no tier holds anything"
    hold_in_host(gateway)
    ask(gateway, "r2", announced_s=8.0)
    answer(gateway, "r2")
    silence(gateway, 2.0)
    ask(gateway, "r3")
    assert not sent_to(silence(gateway, 9.0), "w", SessionReturning)


def test_sessions_without_a_pause_are_not_followed():
    gateway = gateway_with_tiers()
    request = Request("r", tuple(range(9)), account="acme", session=KEY)
    gateway.handle(RequestSubmitted(request, 10.0, tenant="acme", session="agent"))
    assert not sent_to(answer(gateway, "r"), "w", SessionPaused)
    assert gateway.machine.status(gateway.now_ns).pauses.sessions == 0


def test_pauses_are_learnt_by_session_and_by_tool():
    gateway = gateway_with_tiers()
    for turn in range(3):
        ask(gateway, f"r{turn}")
        told = answer(gateway, f"r{turn}")
        assert bool(sent_to(told, "w", SessionPaused)) is (turn > 0)
        gateway.handle(ToolsCalled("acme", "agent", ("search",)))
        silence(gateway, 4.0)
    ask(gateway, "other")
    (paused,) = sent_to(answer(gateway, "other"), "w", SessionPaused)
    assert paused.return_in_ns == pytest.approx(4 * S, abs=MS)
    # What a tool usually takes is known better than what the session did.
    for turn in range(2):
        gateway.handle(ToolsCalled("acme", "agent", ("build",)))
        silence(gateway, 9.0)
        ask(gateway, f"b{turn}")
        answer(gateway, f"b{turn}")
    (paused,) = sent_to(
        gateway.handle(ToolsCalled("acme", "agent", ("build",))), "w", SessionPaused
    )
    assert paused.return_in_ns == pytest.approx(9 * S, abs=2 * MS)


def test_nothing_is_expected_that_nobody_announced_where_nothing_is_learnt():
    gateway = gateway_with_tiers(learns=False)
    for turn in range(3):
        ask(gateway, f"r{turn}")
        assert not sent_to(answer(gateway, f"r{turn}"), "w", SessionPaused)
        silence(gateway, 4.0)


def ends(gateway: GatewayUnderTest, how: str, request_id: str) -> list:
    """After nine tokens and three drawn ones: three blocks, but the last token has no KV."""
    gateway.receive(drew("w", request_id), drew("w", request_id))
    if how == "finished":
        return answer(gateway, request_id)
    gateway.receive(drew("w", request_id))
    if how == "cut off":
        return gateway.pass_time(600 * MS)
    return gateway.handle(RequestWithdrawn(request_id, satisfied=how == "satisfied"))


@pytest.mark.parametrize("how", ["finished", "satisfied", "cut off", "left"])
def test_whatever_ends_an_answer_its_session_is_pinned_and_pauses(how):
    gateway = gateway_with_tiers()
    request = Request("r", tuple(range(9)), account="acme", session=KEY)
    pinned_s = 300
    event = RequestSubmitted(
        request,
        10.0,
        tenant="acme",
        session="agent",
        pin_ns=pinned_s * S,
        answer_due_ns=gateway.now_ns + 500 * MS if how == "cut off" else None,
        pause=FollowedPause(600 * S, 8 * S),
    )
    gateway.handle(event)
    told = ends(gateway, how, "r")
    (pin,) = sent_to(told, "w", PinBlocks)
    # Longer than the pause is expected to be: nothing is added for it.
    assert (pin.digests, pin.ttl_ns) == (chain(), pinned_s * S)
    assert len(sent_to(told, "w", SessionPaused)) == 1


def test_a_request_without_an_answer_pauses_nothing():
    gateway = gateway_with_tiers()
    ask(gateway, "r", announced_s=8.0)
    assert not sent_to(gateway.handle(RequestWithdrawn("r")), "w", SessionPaused | PinBlocks)


@pytest.mark.parametrize("together", [False, True])
def test_tools_of_an_answer_that_a_stop_string_ends_are_learnt(together):
    gateway = gateway_with_tiers()
    for turn in range(3):
        ask(gateway, f"r{turn}")
        gateway.receive(drew("w", f"r{turn}"))
        events = [
            RequestWithdrawn(f"r{turn}", satisfied=True),
            ToolsCalled("acme", "agent", ("search",)),
        ]
        for batch in [events] if together else [[each] for each in events]:
            gateway.handle(*batch)
        silence(gateway, 4.0)
    # Another session of the account has no pauses of its own yet.
    key, pause = session_key("acme", "fresh"), FollowedPause(60 * S)
    request = Request("other", tuple(range(9)), account="acme", session=key)
    gateway.handle(RequestSubmitted(request, 10.0, tenant="acme", session="fresh", pause=pause))
    answer(gateway, "other")
    (paused,) = sent_to(
        gateway.handle(ToolsCalled("acme", "fresh", ("search",))), "w", SessionPaused
    )
    assert paused.return_in_ns == pytest.approx(4 * S, abs=MS)


def test_a_call_that_comes_with_the_end_of_the_one_before_ends_its_pause():
    gateway = gateway_with_tiers()
    ask(gateway, "r", announced_s=8.0)
    gateway.receive(drew("w", "r"))
    request = Request("r2", tuple(range(9)), account="acme", session=KEY)
    pause = FollowedPause(60 * S)
    gateway.handle(
        RequestWithdrawn("r", satisfied=True),
        RequestSubmitted(request, 10.0, tenant="acme", session="agent", pause=pause),
    )
    assert gateway.machine.status(gateway.now_ns).pauses.sessions == 0


def test_sessions_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr("tandem.cluster.gateway.pauses.MOST_BLOCKS", 10 * (16 + 2))
    gateway = gateway_with_tiers()
    for number in range(30):
        key = session_key("acme", str(number))
        request = Request(f"r{number}", tuple(range(9)), account="acme", session=key)
        pause = FollowedPause(60 * S, 8 * S)
        gateway.handle(
            RequestSubmitted(request, 10.0, tenant="acme", session=str(number), pause=pause)
        )
        answer(gateway, f"r{number}")
    assert gateway.machine.status(gateway.now_ns).pauses.sessions == 10


def test_who_makes_up_tools_forgets_its_own():
    learned = LearnedPauses(most=8)
    learned.learn("quiet", ("search",), "s", 3.0)
    for number in range(50):
        learned.learn("loud", (f"made-up-{number}",), f"{number}", 1.0)
    assert learned.expected("quiet", ("search",), "s").seconds == 3.0
    assert learned.expected("loud", ("made-up-0",), "0") is None
    assert learned.expected("loud", ("made-up-49",), "other").seconds == 1.0


def test_one_pause_that_lasted_for_hours_is_soon_unlearnt():
    gateway = gateway_with_tiers()

    def pause(number: int, seconds: float) -> list:
        request = Request(f"r{number}", tuple(range(9)), account="acme", session=KEY)
        followed = FollowedPause(2 * S)
        gateway.handle(
            RequestSubmitted(request, 10.0, tenant="acme", session="agent", pause=followed)
        )
        told = sent_to(answer(gateway, f"r{number}"), "w", SessionPaused)
        silence(gateway, seconds)
        return told

    assert not pause(0, 60.0)
    # Longer than KV is kept for: not followed at first.
    assert not pause(1, 1.0)
    for number in range(2, 10):
        pause(number, 1.0)
    assert pause(10, 1.0)
