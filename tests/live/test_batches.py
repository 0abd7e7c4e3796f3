"""Requests of batches give way to whoever waits for an answer."""

import asyncio
from dataclasses import replace

import httpx2
import pytest

from tandem.api.app import build_app
from tandem.api.batches.runner import BatchRunner
from tandem.api.batches.store import BatchStore
from tandem.api.config import ApiConfig, BatchConfig
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.cluster.router.queue import RequestQueueConfig
from tandem.facts.rate_limits import LimitTerms, RateLimits, background_account
from tandem.facts.serving import Caller
from tandem.facts.slo import AS_THEY_WISH, IN_BACKGROUND, Slo
from tandem.live.gateway.gateway import Gateway
from tandem.live.gateway.terms import GatewayTerms
from tandem.live.local_worker import LocalWorker
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.text.model import TextModel
from tests.api.batches.served import Served, line
from tests.live.toy_cluster import (
    SEQUENCES,
    GatedLedger,
    ToyWorker,
    gateway_config,
    make_gateway,
    make_worker,
    request,
    serving,
    until,
    working,
)
from tests.text.tiny_checkpoint import write_checkpoint

# Less than a block, which others would wait for.
PROMPT = {"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel.load(write_checkpoint(tmp_path_factory.mktemp("checkpoint")))


class Recording:
    """Calls, and writes down that a request of a batch has ended."""

    def __init__(self, caller, ended: list[str]) -> None:
        self._caller, self._ended = caller, ended

    async def call(self, *arguments):
        answer = await self._caller.call(*arguments)
        self._ended.append("batch")
        return answer


async def test_an_interactive_request_goes_before_requests_of_a_batch(text, tmp_path):
    engine, ended = GatedLedger(), []
    worker = make_worker(engine)
    runner = BatchRunner(BatchStore(BatchConfig(str(tmp_path)), shared=False))
    app = build_app(worker, text, ApiConfig(), batches=runner)
    runner.connect(replace(runner.server, caller=Recording(runner.server.caller, ended)))
    await worker.start()
    runner.start()
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        at = Served(runner, http)
        # Whatever they say of themselves.
        batch = await at.begin([line(f"r{n}", **PROMPT, priority=-9) for n in range(40)])
        waiting = worker.machine.planner.waiting
        await until(lambda: len(waiting) == 16 - SEQUENCES)
        assert {each.request.priority for each in waiting} == {IN_BACKGROUND}
        asked = asyncio.create_task(http.post("/v1/completions", json=PROMPT))
        await until(lambda: len(waiting) == 17 - SEQUENCES)
        assert waiting.first.request.priority == 0
        engine.gate.set()
        assert (await asked).status_code == 200
        # Those that ran already may have ended, and no other.
        assert len(ended) <= SEQUENCES
        batch = await at.ended(batch)
        assert batch.request_counts.completed == 40
    await runner.stop()
    await worker.stop()


async def test_batches_of_a_gateway_leave_its_callers_what_they_may_use(text, tmp_path):
    """Neither a rate limit nor a bounded place: of both, a batch has its own."""
    limits = LimitTerms({"acme": RateLimits(requests_per_minute=9)})
    router = replace(
        gateway_config().router,
        queue=RequestQueueConfig(max_requests=1),
        classes=Classes((ServiceClass("a", slo=Slo(1.0), deadline_s=30.0),), default="a"),
    )
    machine = GatewayMachine(replace(gateway_config(), limits=limits, router=router))
    gateway, worker = Gateway(make_gateway().card, machine, GatewayTerms("i")), ToyWorker("w")
    runner = BatchRunner(BatchStore(BatchConfig(str(tmp_path)), shared=True))
    app = build_app(gateway, text, ApiConfig(tenants={"key": "acme"}), batches=runner)
    transport = httpx2.ASGITransport(app=app)
    async with (
        serving(gateway) as endpoint,
        working(worker, at=endpoint),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):
        await until(lambda: gateway.ready)
        worker.engine.gate.clear()
        runner.start()
        at = Served(runner, http, "key")
        batch = await at.begin([line(f"r{n}", **PROMPT) for n in range(9)])
        await until(lambda: len(machine.router.requests) == 9)
        submitted = [each.submission for each in machine.router.requests.values()]
        assert {each.request.priority for each in submitted} == {IN_BACKGROUND}
        assert {each.tenant for each in submitted} == {background_account("acme")}
        assert {(each.slo, each.deadline_ns) for each in submitted} == {(Slo(), None)}
        assert not machine.router.admission.queue.full
        headers = {"Authorization": "Bearer key"}
        asked = asyncio.create_task(http.post("/v1/completions", json=PROMPT, headers=headers))
        await until(lambda: machine.router.admission.queue.full)
        worker.engine.gate.set()
        answer = await asked
        assert (answer.status_code, answer.headers["x-ratelimit-remaining-requests"]) == (200, "8")
        assert (await at.ended(batch)).request_counts.completed == 9
        page = (await http.get("/metrics", headers=headers)).text
        assert 'tandem:batches{model_name="toy",status="completed"} 1.0' in page
        await runner.stop()


async def test_what_runs_in_the_background_is_least_urgent_whatever_it_says():
    engine = GatedLedger()
    made = make_worker(engine)
    worker = LocalWorker(made.card, made.machine, engine, AS_THEY_WISH)
    await worker.start()
    urgent = replace(request("a"), priority=-5)
    task = asyncio.create_task(anext(worker.generate(urgent, Caller(background=True))))
    await until(lambda: worker.machine.unfinished)
    assert worker.machine.unfinished["a"].request.priority == IN_BACKGROUND
    engine.gate.set()
    await task
    await worker.stop()
