"""While a phase has no worker, requests wait for it without work, within the bound, and not for
ever."""

import asyncio

import pytest

from tandem.facts.errors import EngineFailed, NotReady, Overloaded
from tandem.facts.fleet import Role
from tandem.facts.serving import Caller
from tandem.messages.router import RequestSubmitted, RequestWithdrawn
from tests.cluster.ledger_engine import answer
from tests.live.ends import PATIENCE_S
from tests.live.toy_cluster import (
    CONTEXT_TOKENS,
    ToyWorker,
    make_gateway,
    read,
    request,
    serving,
    until,
    working,
)

WAITING = 60


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the timers that are set: whoever polls sets one after the other."""

    timers = 0

    def call_at(self, *arguments, **context):
        self.timers += 1
        return super().call_at(*arguments, **context)


def bereaved(scenario, **terms) -> None:
    """With a gateway whose only decode worker has come and gone."""

    async def main() -> None:
        ledgers: dict = {}
        gateway = make_gateway(**terms)
        prefill, decode = (ToyWorker(str(r), r, ledgers) for r in (Role.PREFILL, Role.DECODE))
        async with (
            asyncio.timeout(PATIENCE_S),
            serving(gateway) as endpoint,
            working(prefill, at=endpoint),
        ):
            async with working(decode, at=endpoint):
                await until(lambda: gateway.ready)
            await until(lambda: len(list(gateway.machine.members)) == 1)
            await scenario(gateway, endpoint, ledgers)

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main())


def test_who_waits_for_a_worker_costs_nothing_and_is_counted():
    async def scenario(gateway, endpoint, ledgers):
        wanted = [request(f"r{i}", (1, 2, i % 9), seed=i) for i in range(WAITING)]
        tasks = [asyncio.create_task(read(gateway, one)) for one in wanted]
        # Each has begun to wait.
        for _ in range(3):
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        before = loop.timers
        await asyncio.wait(tasks, timeout=0.1)
        # The machine has its own.
        assert loop.timers - before < WAITING
        with pytest.raises(Overloaded):
            await read(gateway, request("one too many"))
        async with working(ToyWorker("back", Role.DECODE, ledgers), at=endpoint):
            for one, task in zip(wanted, tasks, strict=True):
                assert await task == answer(one.prompt_tokens, one.sampling, CONTEXT_TOKENS)
        assert gateway._clients.demand.waiting == 0

    bereaved(scenario, max_waiting=WAITING)


def test_who_gives_way_while_nobody_is_there_hears_so_at_once():
    async def scenario(gateway, endpoint, ledgers):
        many, few = Caller("many"), Caller("few")
        wanted = [request(f"r{i}") for i in range(3)]
        tasks = [asyncio.create_task(read(gateway, one, many)) for one in wanted]
        await asyncio.sleep(0)
        newcomer = asyncio.create_task(read(gateway, request("newcomer"), few))
        with pytest.raises(Overloaded, match="most of them yours"):
            await tasks[-1]
        assert not any(task.done() for task in (*tasks[:-1], newcomer))
        async with working(ToyWorker("back", Role.DECODE, ledgers), at=endpoint):
            for one, task in zip(
                (*wanted[:-1], request("newcomer")), (*tasks[:-1], newcomer), strict=True
            ):
                assert await task == answer(one.prompt_tokens, one.sampling, CONTEXT_TOKENS)
        await until(lambda: not gateway.machine.router.requests)

    bereaved(scenario, max_waiting=3)


@pytest.mark.parametrize("turns_later", range(8))
def test_who_gives_way_as_somebody_comes_back_is_not_computed_for_nobody(turns_later):
    async def scenario(gateway, endpoint, ledgers):
        told: list = []
        # Nobody has come back in truth: the machine need not hear.
        gateway._loop.enqueue = told.append
        tasks = [
            asyncio.create_task(read(gateway, request(f"r{i}"), Caller("many"))) for i in range(3)
        ]
        # Each has begun to wait.
        for _ in range(3):
            await asyncio.sleep(0)
        availability = gateway._availability
        availability._changed.set()
        availability._changed = asyncio.Event()
        for _ in range(turns_later):
            await asyncio.sleep(0)
        tasks.append(asyncio.create_task(read(gateway, request("newcomer"), Caller("few"))))
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

    bereaved(scenario, max_waiting=3)


def test_nobody_waits_for_ever_and_who_leaves_is_not_counted_any_more():
    async def scenario(gateway, endpoint, ledgers):
        gone = asyncio.create_task(read(gateway, request("gone")))
        await asyncio.sleep(0)
        gone.cancel()
        late = asyncio.create_task(read(gateway, request("late")))
        await asyncio.wait([gone])
        assert gateway._clients.demand.waiting == 1
        with pytest.raises(NotReady, match="no worker has come back"):
            await late
        assert gateway._clients.demand.waiting == 0
        assert not gateway.ready
        with pytest.raises(NotReady):
            await read(gateway, request("later"))
        assert not gateway.machine.router.requests

    bereaved(scenario, comeback_s=0.05)


def test_a_gateway_that_closes_tells_those_who_wait():
    async def scenario(gateway, endpoint, ledgers):
        late = asyncio.create_task(read(gateway, request("late")))
        await asyncio.sleep(0)
        gateway.close()
        with pytest.raises(EngineFailed, match="shutting down"):
            await late

    bereaved(scenario)
