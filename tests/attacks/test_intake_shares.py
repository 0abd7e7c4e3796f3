"""One account fills the server with bodies: it stands in its own way alone."""

import asyncio
import json
import random
import threading

import pytest
from starlette.types import ASGIApp, Message

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.api.intake import LARGE_BYTES, QUEUED_CALLS, THREADS, Intake
from tandem.api.refusal import Refused
from tandem.api.shares import Shares
from tandem.api.turns import QueueFull, Turns
from tandem.text.model import TextModel
from tests.api.scripted_generator import ScriptedGenerator
from tests.text.tiny_checkpoint import write_checkpoint

MIB = 1 << 20
LARGE = 4 * LARGE_BYTES
KEYS = {"attacker-key": "attacker", "victim-key": "victim"}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> TextModel:
    return TextModel.load(write_checkpoint(tmp_path_factory.mktemp("checkpoint")))


class Upload:
    """One call at the application, whose body does not end unless it is `whole`."""

    def __init__(self, body: bytes, key: str = "", address: str = "", *, whole: bool = False):
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.reads = 0
        self._body = body
        self._whole = whole
        self._headers = [(b"content-type", b"application/json")]
        if key:
            self._headers.append((b"authorization", b"Bearer " + key.encode()))
        self._client = (address, 1)
        self._gone = asyncio.Event()

    async def call(self, app: ASGIApp) -> None:
        path = "/v1/completions"
        scope = {"type": "http", "method": "POST", "path": path, "headers": self._headers}
        scope |= {"query_string": b"", "root_path": "", "client": self._client}
        await app(scope, self._receive, self._send)

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> Message:
        self.reads += 1
        if self.reads > 1:
            await self._gone.wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._body, "more_body": not self._whole}

    async def _send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        self.headers |= dict(message.get("headers", ()))


def completion(size: int) -> bytes:
    body = json.dumps({"prompt": "hi", "max_tokens": 1, "stop": "never"})
    return body.encode().ljust(size)


@pytest.mark.parametrize("by", ["tenant", "address"])
def test_who_fills_the_server_with_bodies_gives_way_to_others(text, by):
    config = ApiConfig(tenants=KEYS) if by == "tenant" else ApiConfig()

    def upload(who: str, body: bytes, *, whole: bool = False) -> Upload:
        mine = (f"{who}-key", "") if by == "tenant" else ("", f"10.0.0.{len(who)}")
        return Upload(body, *mine, whole=whole)

    async def attack() -> None:
        app = build_app(ScriptedGenerator(text), text, config)
        slow = [upload("attacker", b" " * MIB) for _ in range(32)]
        uploading = [asyncio.create_task(each.call(app)) for each in slow]
        while any(each.reads < 2 for each in slow):
            await asyncio.sleep(0)
        # It has no room for more of its own, but for a short call.
        for size, status in ((LARGE, 503), (100, 200)):
            own = upload("attacker", completion(size), whole=True)
            await own.call(app)
            assert own.status == status
            if status == 503:
                assert own.headers[b"retry-after"] in (b"1", b"2")
        for size in (100, LARGE, MIB):
            victim = upload("victim", completion(size), whole=True)
            await victim.call(app)
            assert victim.status == 200
        # Its newest upload was enough.
        await asyncio.wait(uploading, return_when=asyncio.FIRST_COMPLETED)
        assert [each.status for each in slow] == [0] * 31 + [503]
        for each in slow:
            each.leave()
        await asyncio.gather(*uploading)

    asyncio.run(attack())


def test_what_is_to_be_kept_does_not_give_way():
    intake = Intake(ApiConfig(), 4096)

    async def attack() -> None:
        with intake.holding("a") as kept, intake.holding("b", gives_way=True) as late:
            kept.take(intake.most_bytes)
            with pytest.raises(Refused) as refused:
                late.take(LARGE)
            assert refused.value.refusal.status == 503
            late.take(LARGE_BYTES)
            assert intake.held_bytes == intake.most_bytes + LARGE_BYTES
        assert intake.held_bytes == 0

    asyncio.run(attack())


def test_a_small_body_that_grows_is_counted_once():
    intake = Intake(ApiConfig(), 4096)

    async def grow() -> None:
        with intake.holding("a", gives_way=True) as held:
            for _ in range(10):
                held.take(LARGE_BYTES // 4)
                assert intake.held_bytes == held.count
        assert intake.held_bytes == 0

    asyncio.run(grow())


class Client:
    async def receive(self) -> Message:
        return await asyncio.Event().wait()


def test_large_bodies_are_read_by_turns():
    async def attack() -> None:
        intake, hold, done = Intake(ApiConfig(), 4096), threading.Event(), []

        def run(who: str) -> asyncio.Task:
            work = intake.run(Client(), LARGE, lambda: (hold.wait(), done.append(who)), who)
            return asyncio.create_task(work)

        running = [run("attacker") for _ in range(THREADS + QUEUED_CALLS)]
        while intake.queued_calls < QUEUED_CALLS:
            await asyncio.sleep(0)
        victims = [run("victim") for _ in range(3)]
        # They took the places of the attacker's newest.
        await asyncio.wait(running[-3:])
        for refused in running[-3:]:
            assert refused.exception().refusal.status == 429
            assert refused.exception().refusal.headers["Retry-After"] in ("1", "2")
        own = run("attacker")
        await asyncio.wait([own])
        assert own.exception().refusal.status == 429
        hold.set()
        await asyncio.gather(*victims, *running[:-3])
        # Two threads, which began with two of the attacker's; then one of each.
        assert [place for place, who in enumerate(done) if who == "victim"][-1] < 12
        assert intake.queued_calls == 0

    asyncio.run(attack())


def test_turns_are_not_lost_with_those_who_leave():
    async def attack() -> None:
        turns = Turns(1, 2)
        await turns.begin("a")
        leaves, stays = (asyncio.create_task(turns.begin("b")) for _ in range(2))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await turns.begin("b")
        # Its turn comes and it goes in the same moment.
        turns.end()
        leaves.cancel()
        await stays
        turns.end()
        await turns.begin("c")
        assert turns.waiting == 0

    asyncio.run(attack())


def test_a_place_is_not_lost_with_one_that_was_just_leaving():
    async def attack() -> None:
        turns = Turns(1, 2)
        await turns.begin("first")
        waiting = [asyncio.create_task(turns.begin("attacker")) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        # It has not heard of that yet.
        victim = turns.begin("victim")
        assert victim.send(None) is not None
        victim.close()
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert turns.waiting == 0

    asyncio.run(attack())


def test_whoever_holds_less_than_an_equal_share_finds_room():
    chance, shares, held = random.Random(1), Shares[int](1000), dict[int, tuple[str, int]]()
    for item in range(3000):
        account, more = chance.choice("abcd"), chance.randint(1, 60)
        mine = sum(amount for who, amount in held.values() if who == account)
        try:
            for victim in shares.take(item, account, more):
                # Only of who held more.
                loser = held[victim][0]
                theirs = sum(amount for who, amount in held.values() if who == loser)
                assert loser != account
                assert theirs > mine + more
                del held[victim]
            held[item] = (account, more)
        except OverflowError:
            assert mine + more > 1000 // 4 - 60
        if chance.random() < 0.1:
            gone = chance.choice(sorted(held))
            shares.give_back(gone)
            del held[gone]
        assert shares.held == sum(amount for _, amount in held.values()) <= 1000
