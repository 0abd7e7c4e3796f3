"""Clients fill the server with bodies and leave: what is read is bounded, in bytes and in calls
that wait, and one account that does so stands in its own way alone."""

import asyncio
import json
import threading
from collections.abc import Sequence

import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.api.errors import Refused
from tandem.api.intake import LARGE_BYTES, QUEUED_CALLS, THREADS, FairSlots, Intake, QueueFull
from tandem.api.streaming import ClientGone
from tests.attacks.clients import Connection, Upload

MIB = 1 << 20
LARGE = 4 * LARGE_BYTES
KEYS = {"attacker-key": "attacker", "victim-key": "victim"}


@pytest.fixture
def intake() -> Intake:
    return Intake(ApiConfig(), 4096)


def completion(size: int) -> bytes:
    body = json.dumps({"prompt": "hi", "max_tokens": 1, "stop": "never"})
    return body.encode().ljust(size)


async def begun(app, uploads: Sequence[Upload]) -> list[asyncio.Task]:
    """All that they send has been read, and none of them ends."""
    tasks = [asyncio.create_task(each.call(app)) for each in uploads]
    while any(each.reads < 2 for each in uploads):
        await asyncio.sleep(0)
    return tasks


async def leave(uploads: Sequence[Upload], tasks: Sequence[asyncio.Task]) -> None:
    for each in uploads:
        each.leave()
    await asyncio.gather(*tasks)


async def test_bodies_of_all_connections_are_bounded_together(text, generator):
    size = 8 << 20
    app = build_app(generator, text, ApiConfig(max_body_bytes=size))
    # What is declared alone takes no place from others.
    uploads = [Upload(b"", declared=size) for _ in range(32)]
    uploads += [Upload(b" " * (size - 1), declared=size) for _ in range(8)]
    tasks = await begun(app, uploads)
    late = Upload(b" " * 10_000, declared=10_000)
    await late.call(app)
    assert late.status == 503
    assert late.reads == 0, "nothing is read where it has no room"
    await leave(uploads, tasks)
    after = Upload(b" " * 1000, declared=1000)
    after.leave()
    await after.call(app)
    assert after.status == 400


@pytest.mark.parametrize("by", ["tenant", "address"])
async def test_who_fills_the_server_with_bodies_gives_way_to_others(text, generator, by):
    def upload(who: str, body: bytes, *, whole: bool = False) -> Upload:
        if by == "tenant":
            return Upload(body, whole=whole, key=f"{who}-key")
        return Upload(body, whole=whole, address=f"10.0.0.{len(who)}")

    app = build_app(generator, text, ApiConfig(tenants=KEYS if by == "tenant" else {}))
    slow = [upload("attacker", b" " * MIB) for _ in range(32)]
    tasks = await begun(app, slow)
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
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [each.status for each in slow] == [0] * 31 + [503]
    await leave(slow, tasks)


async def test_what_is_to_be_kept_does_not_give_way(intake):
    with intake.holding_body("a") as kept, intake.holding_body("b", gives_way=True) as late:
        kept.hold_bytes(intake.most_bytes)
        with pytest.raises(Refused) as refused:
            late.hold_bytes(LARGE)
        assert refused.value.refusal.status == 503
        late.hold_bytes(LARGE_BYTES)
        assert intake.held_bytes == intake.most_bytes + LARGE_BYTES
    assert intake.held_bytes == 0


async def test_a_small_body_that_grows_is_counted_once(intake):
    with intake.holding_body("a", gives_way=True) as held:
        for _ in range(10):
            held.hold_bytes(LARGE_BYTES // 4)
            assert intake.held_bytes == held.count
    assert intake.held_bytes == 0


class Readers:
    """Large bodies that are to be read off the loop; every thread waits until it may `go_on`."""

    def __init__(self, intake: Intake) -> None:
        self.go_on = threading.Event()
        self.done: list[str] = []
        self._intake = intake

    def read(self, who: str, client: Connection | None = None) -> asyncio.Task:
        def work() -> None:
            self.go_on.wait()
            self.done.append(who)

        reading = self._intake.run_off_loop(client or Connection(), LARGE, work, who)
        return asyncio.create_task(reading)

    async def fill(self, who: str) -> tuple[list[Connection], list[asyncio.Task]]:
        """Calls for all threads, and behind them for the whole queue."""
        clients = [Connection() for _ in range(THREADS + QUEUED_CALLS)]
        tasks = [self.read(who, client) for client in clients]
        while self._intake.queued_calls < QUEUED_CALLS:
            await asyncio.sleep(0)
        return clients, tasks


async def test_who_leaves_the_queue_costs_nothing_and_too_many_are_refused(intake):
    readers = Readers(intake)
    clients, tasks = await readers.fill("a")
    with pytest.raises(Refused) as refused:
        await readers.read("a")
    assert refused.value.refusal.status == 429
    assert "Retry-After" in refused.value.refusal.headers
    # All but the first that waits.
    for client in clients[THREADS + 1 :]:
        client.leave()
    results = await asyncio.gather(*tasks[THREADS + 1 :], return_exceptions=True)
    assert all(isinstance(result, ClientGone) for result in results)
    readers.go_on.set()
    await asyncio.gather(*tasks[: THREADS + 1])
    assert len(readers.done) == THREADS + 1
    assert intake.queued_calls == 0


async def test_large_bodies_are_read_by_turns(intake):
    readers = Readers(intake)
    _, running = await readers.fill("attacker")
    victims = [readers.read("victim") for _ in range(3)]
    # They took the places of the attacker's newest.
    await asyncio.wait(running[-3:])
    for refused in running[-3:]:
        assert refused.exception().refusal.status == 429
        assert refused.exception().refusal.headers["Retry-After"] in ("1", "2")
    own = readers.read("attacker")
    await asyncio.wait([own])
    assert own.exception().refusal.status == 429
    readers.go_on.set()
    await asyncio.gather(*victims, *running[:-3])
    # Two threads, which began with two of the attacker's; then one of each.
    assert [place for place, who in enumerate(readers.done) if who == "victim"][-1] < 12
    assert intake.queued_calls == 0


async def test_turns_are_not_lost_with_those_who_leave():
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


async def test_a_place_is_not_lost_with_one_that_was_just_leaving():
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
