"""While a phase has no worker, requests wait for it without work, within the bound, and not for
ever."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from tandem.facts.errors import EngineFailed, NotReady, Overloaded
from tandem.facts.fleet import Role
from tandem.facts.serving import ANYBODY, Caller
from tandem.live.driver import Driver
from tandem.messages.router import RequestSubmitted, RequestWithdrawn
from tests.attacks.toy_workers import whole
from tests.live.toy_cluster import ToyWorker, make_gateway, read, request, serving, until, working

WAITING = 60
MANY, FEW = Caller("many"), Caller("few")


@asynccontextmanager
async def bereaved(**terms):
    """A gateway whose only decode worker has come and gone, and another one for it to come back."""
    ledgers: dict = {}
    gateway = make_gateway(**terms)
    prefill, decode = (ToyWorker(str(r), r, ledgers) for r in (Role.PREFILL, Role.DECODE))
    async with serving(gateway) as endpoint, working(prefill, at=endpoint):
        async with working(decode, at=endpoint):
            await until(lambda: gateway.ready)
        await until(lambda: len(list(gateway.machine.members)) == 1)
        yield gateway, working(ToyWorker("back", Role.DECODE, ledgers), at=endpoint)


async def waiting(gateway, *wanted, caller: Caller = ANYBODY) -> list[asyncio.Task]:
    """Their readers, each of which has begun to wait."""
    tasks = [asyncio.create_task(read(gateway, one, caller)) for one in wanted]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


def _owner(callback) -> object:
    return getattr(callback, "__self__", None)


async def test_who_waits_for_a_worker_costs_nothing_and_is_counted(monkeypatch):
    async with bereaved(max_waiting=WAITING) as (gateway, comes_back):
        wanted = [request(f"r{i}", (1, 2, i % 9), seed=i) for i in range(WAITING)]
        tasks = await waiting(gateway, *wanted)
        # Whoever polls sets one timer after the other.
        loop, timers = asyncio.get_running_loop(), []
        call = loop.call_later
        monkeypatch.setattr(loop, "call_later", lambda *a, **k: timers.append(a) or call(*a, **k))
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in tasks)
        # Beside those of the machines, one is this test's own.
        machines = [each for each in timers if isinstance(_owner(each[1]), Driver)]
        assert len(timers) - len(machines) == 1
        with pytest.raises(Overloaded):
            await read(gateway, request("one too many"))
        async with comes_back:
            for one, task in zip(wanted, tasks, strict=True):
                assert await task == whole(one)
        assert gateway._clients.demand.waiting == 0


async def test_who_gives_way_while_nobody_is_there_hears_so_at_once():
    async with bereaved(max_waiting=3) as (gateway, comes_back):
        *stay, last = (request(f"r{i}") for i in range(3))
        *staying, gives_way = await waiting(gateway, *stay, last, caller=MANY)
        staying += await waiting(gateway, request("newcomer"), caller=FEW)
        with pytest.raises(Overloaded, match="most of them yours"):
            await gives_way
        assert not any(task.done() for task in staying)
        async with comes_back:
            for one, task in zip((*stay, request("newcomer")), staying, strict=True):
                assert await task == whole(one)
        await until(lambda: not gateway.machine.router.requests)


@pytest.mark.parametrize("turns_later", range(8))
async def test_who_gives_way_as_somebody_comes_back_is_not_computed_for_nobody(turns_later):
    async with bereaved(max_waiting=3) as (gateway, _):
        told: list = []
        # Nobody has come back in truth: the machine need not hear.
        gateway._loop.enqueue = told.append
        tasks = await waiting(gateway, *(request(f"r{i}") for i in range(3)), caller=MANY)
        availability = gateway._availability
        availability._changed.set()
        availability._changed = asyncio.Event()
        for _ in range(turns_later):
            await asyncio.sleep(0)
        tasks.append(asyncio.create_task(read(gateway, request("newcomer"), FEW)))
        with pytest.raises(Overloaded, match="most of them yours"):
            await tasks[2]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        words = [
            type(each)
            for each in told
            if getattr(each, "request_id", "").endswith("r2")
            or (isinstance(each, RequestSubmitted) and each.request.request_id.endswith("r2"))
        ]
        withdrawn = words.index(RequestWithdrawn)
        assert RequestSubmitted not in words[withdrawn:]


async def test_nobody_waits_for_ever_and_who_leaves_is_not_counted_any_more():
    async with bereaved(comeback_s=0.05) as (gateway, _):
        gone = asyncio.create_task(read(gateway, request("gone")))
        await asyncio.sleep(0)
        gone.cancel()
        late = asyncio.create_task(read(gateway, request("late")))
        await asyncio.wait([gone])
        assert gateway._clients.demand.waiting == 1
        with pytest.raises(NotReady, match="no worker has come back"):
            await late
        assert gateway._clients.demand.waiting == 0
        # The timer may be a hair before the clock.
        await until(lambda: not gateway.ready)
        with pytest.raises(NotReady):
            await read(gateway, request("later"))
        assert not gateway.machine.router.requests


async def test_a_gateway_that_closes_tells_those_who_wait():
    async with bereaved() as (gateway, _):
        (late,) = await waiting(gateway, request("late"))
        gateway.close()
        with pytest.raises(EngineFailed, match="shutting down"):
            await late
