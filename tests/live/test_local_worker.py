"""The live shell: streams, cancellation, refusals and failures of one worker in this process."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from tandem.facts.errors import EngineFailed, InvalidRequest, Overloaded, PromptTooLong
from tandem.facts.request import FinishReason
from tandem.live.mailbox import Mailbox
from tandem.messages.worker import EmitTokens
from tests.cluster.ledger_engine import VOCABULARY, answer
from tests.live.toy_cluster import (
    CONTEXT_TOKENS,
    SEQUENCES,
    GatedLedger,
    drained,
    make_worker,
    read,
    request,
    until,
)
from tests.observe.metrics_text import text_of


@asynccontextmanager
async def serving(engine: GatedLedger | None = None, **options):
    """A worker that was started, and its engine, whose gate is closed."""
    engine = engine or GatedLedger()
    worker = make_worker(engine, **options)
    await worker.start()
    try:
        yield worker, engine
    finally:
        engine.gate.set()
        await worker.stop()


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_streams_get_their_own_answers(asynchronous):
    async with serving(GatedLedger(asynchronous=asynchronous)) as (worker, engine):
        engine.gate.set()
        wanted = [request(str(i), (1, 2, 3, 4, 5, i), seed=i, max_tokens=30) for i in range(9)]
        answers = await asyncio.gather(*(read(worker, one) for one in wanted))
        for one, got in zip(wanted, answers, strict=True):
            assert got == answer(one.prompt_tokens, one.sampling, CONTEXT_TOKENS)
        await until(lambda: drained(worker))


async def test_a_reader_who_leaves_frees_everything():
    async with serving() as (worker, engine):
        stream = worker.generate(request("gone", max_tokens=150))
        engine.gate.set()
        await anext(stream)
        await stream.aclose()
        await until(lambda: drained(worker))
        text = text_of(worker.metric_families())
        assert 'request_success_total{finished_reason="abort",model_name="toy"} 1.0' in text
        assert not worker.metrics.requests.open_requests


async def test_a_reader_who_leaves_before_the_first_step_never_runs():
    async with serving() as (worker, engine):
        task = asyncio.create_task(read(worker, request("early")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        engine.gate.set()
        assert len(await read(worker, request("next"))) == 8
        await until(lambda: drained(worker))
        # Only the eight tokens of the one who stayed were ever drawn.
        assert 'generation_tokens_total{model_name="toy"} 8.0' in text_of(worker.metric_families())


async def test_what_cannot_run_is_refused_and_disturbs_nobody():
    async with serving() as (worker, engine):
        engine.gate.set()
        good = asyncio.create_task(read(worker, request("good", max_tokens=60)))
        with pytest.raises(PromptTooLong):
            await read(worker, request("long", (1,) * CONTEXT_TOKENS))
        with pytest.raises(InvalidRequest, match="vocabulary"):
            await read(worker, request("alien", (VOCABULARY,)))
        with pytest.raises(InvalidRequest, match="empty"):
            await read(worker, request("empty", ()))
        assert len(await good) == 60


async def test_a_full_queue_refuses_with_a_time_to_come_back():
    async with serving(max_waiting=SEQUENCES) as (worker, engine):
        running = [asyncio.create_task(read(worker, request(str(i)))) for i in range(SEQUENCES)]
        # Both flights are out, so nobody else is admitted before the gate opens.
        await until(lambda: len(worker.machine.sequences.running) == SEQUENCES)
        waiting = [asyncio.create_task(read(worker, request(f"w{i}"))) for i in range(SEQUENCES)]
        await until(lambda: len(worker.machine.planner.waiting) == SEQUENCES)
        with pytest.raises(Overloaded) as refusal:
            await read(worker, request("late"))
        assert refusal.value.retry_after_s > 0
        engine.gate.set()
        await asyncio.gather(*running, *waiting)


async def test_two_running_requests_cannot_share_an_id():
    async with serving() as (worker, engine):
        first = asyncio.create_task(read(worker, request("twin")))
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="already running"):
            await read(worker, request("twin"))
        engine.gate.set()
        await first


async def test_a_dead_engine_fails_its_requests_and_the_readiness():
    async with serving() as (worker, engine):
        engine.broken = True
        task = asyncio.create_task(read(worker, request("victim")))
        engine.gate.set()
        with pytest.raises(EngineFailed, match=r"^the engine failed$"):
            await task
        text = text_of(worker.metric_families())
        assert 'request_success_total{finished_reason="error",model_name="toy"} 1.0' in text
        assert not worker.metrics.requests.open_requests
        assert worker.failed
        assert not worker.ready
        with pytest.raises(EngineFailed):
            await read(worker, request("later"))


async def test_a_stopped_worker_has_not_failed():
    async with serving() as (worker, engine):
        engine.gate.set()
        await worker.stop()
        assert not worker.ready
        assert not worker.failed


async def test_metrics_count_what_happened():
    async with serving() as (worker, engine):
        engine.gate.set()
        await read(worker, request("a", (1, 2, 3, 4, 5, 6, 7, 8, 9), max_tokens=5))
        await read(worker, request("b", (1, 2, 3, 4, 5, 6, 7, 8, 9), max_tokens=5))
        text = text_of(worker.metric_families())
        for line in (
            'tandem:prompt_tokens_total{model_name="toy"} 18.0',
            'tandem:generation_tokens_total{model_name="toy"} 10.0',
            'tandem:prefix_cache_queries_total{model_name="toy"} 18.0',
            'tandem:prefix_cache_hits_total{model_name="toy"} 8.0',
            'tandem:time_to_first_token_seconds_count{model_name="toy"} 2.0',
            'tandem:inter_token_latency_seconds_count{model_name="toy"} 8.0',
            'tandem:request_success_total{finished_reason="length",model_name="toy"} 2.0',
            'tandem:num_requests_running{model_name="toy"} 0.0',
            'tandem:prompt_tokens_cached_total{model_name="toy"} 8.0',
            'tandem:request_prefill_kv_computed_tokens_sum{model_name="toy"} 10.0',
            'tandem:request_params_max_tokens_sum{model_name="toy"} 10.0',
            'tandem:request_inference_time_seconds_count{model_name="toy"} 2.0',
        ):
            assert line in text


async def test_a_reader_who_found_its_stop_string_counts_as_stopped():
    async with serving() as (worker, engine):
        engine.gate.set()
        stream = worker.generate(request("done", max_tokens=150))
        await anext(stream)
        worker.satisfied("done")
        await stream.aclose()
        await until(lambda: drained(worker))
        text = text_of(worker.metric_families())
        assert 'request_success_total{finished_reason="stop",model_name="toy"} 1.0' in text
        assert 'request_success_total{finished_reason="abort",model_name="toy"} 0.0' in text
        assert 'e2e_request_latency_seconds_count{model_name="toy"} 1.0' in text


async def test_closing_ends_running_requests_but_not_finished_ones():
    async with serving() as (worker, _):
        finished = Mailbox()
        done = EmitTokens(("a",), (5,), (FinishReason.LENGTH,), (False,), (0,))
        finished.add_output(done, 0)
        finished.fail(EngineFailed("too late"))
        assert (await finished.next_output()).tokens == (5,)
        running = asyncio.create_task(read(worker, request("running", max_tokens=150)))
        await asyncio.sleep(0)
        worker.close()
        with pytest.raises(EngineFailed, match="shutting down"):
            await running
        assert not worker.ready
        assert not worker.failed
