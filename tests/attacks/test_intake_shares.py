"""One account fills the server with bodies: it stands in its own way alone."""

import asyncio
import json
import threading

import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.api.errors import Refused
from tandem.api.intake import LARGE_BYTES, QUEUED_CALLS, THREADS, FairSlots, Intake, QueueFull
from tandem.text.model import TextModel
from tests.api.scripted_generator import ScriptedGenerator
from tests.attacks.asgi_client import Connection, Upload
from tests.text.tiny_checkpoint import write_checkpoint

MIB = 1 << 20
LARGE = 4 * LARGE_BYTES
KEYS = {"attacker-key": "attacker", "victim-key": "victim"}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> TextModel:
    return TextModel.load(write_checkpoint(tmp_path_factory.mktemp("checkpoint")))


def completion(size: int) -> bytes:
    body = json.dumps({"prompt": "hi", "max_tokens": 1, "stop": "never"})
    return body.encode().ljust(size)


@pytest.mark.parametrize("by", ["tenant", "address"])
def test_who_fills_the_server_with_bodies_gives_way_to_others(text, by):
    config = ApiConfig(tenants=KEYS) if by == "tenant" else ApiConfig()

    def upload(who: str, body: bytes, *, whole: bool = False) -> Upload:
        if by == "tenant":
            return Upload(body, whole=whole, key=f"{who}-key")
        return Upload(body, whole=whole, address=f"10.0.0.{len(who)}")

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
        with intake.holding_body("a") as kept, intake.holding_body("b", gives_way=True) as late:
            kept.hold_bytes(intake.most_bytes)
            with pytest.raises(Refused) as refused:
                late.hold_bytes(LARGE)
            assert refused.value.refusal.status == 503
            late.hold_bytes(LARGE_BYTES)
            assert intake.held_bytes == intake.most_bytes + LARGE_BYTES
        assert intake.held_bytes == 0

    asyncio.run(attack())


def test_a_small_body_that_grows_is_counted_once():
    intake = Intake(ApiConfig(), 4096)

    async def grow() -> None:
        with intake.holding_body("a", gives_way=True) as held:
            for _ in range(10):
                held.hold_bytes(LARGE_BYTES // 4)
                assert intake.held_bytes == held.count
        assert intake.held_bytes == 0

    asyncio.run(grow())


def test_large_bodies_are_read_by_turns():
    async def attack() -> None:
        intake, hold, done = Intake(ApiConfig(), 4096), threading.Event(), []

        def run(who: str) -> asyncio.Task:
            work = intake.run_off_loop(
                Connection(), LARGE, lambda: (hold.wait(), done.append(who)), who
            )
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
        slots = FairSlots(1, 2)
        await slots.acquire_slot("a")
        leaves, stays = (asyncio.create_task(slots.acquire_slot("b")) for _ in range(2))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await slots.acquire_slot("b")
        # Its turn comes and it goes in the same moment.
        slots.release_slot()
        leaves.cancel()
        await stays
        slots.release_slot()
        await slots.acquire_slot("c")
        assert slots.waiting == 0

    asyncio.run(attack())


def test_a_place_is_not_lost_with_one_that_was_just_leaving():
    async def attack() -> None:
        slots = FairSlots(1, 2)
        await slots.acquire_slot("first")
        waiting = [asyncio.create_task(slots.acquire_slot("attacker")) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        # It has not heard of that yet.
        victim = slots.acquire_slot("victim")
        assert victim.send(None) is not None
        victim.close()
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert slots.waiting == 0

    asyncio.run(attack())
