"""An encoder behind its queue: what comes back is whose it is, batches are those that the machine
forms, and nobody waits for what is over."""

import asyncio
import re

import numpy as np
import pytest
import torch

from tandem.facts.encoder import EncodedText
from tandem.facts.errors import EngineFailed, Overloaded
from tandem.kernels.faces import choose_kernels
from tandem.live.encoder import LiveEncoder
from tandem.models.encoders.batch import batch_of
from tandem.models.encoders.load import load_encoder
from tandem.models.weights import WeightForm
from tandem.policy.dynamic_batching import DynamicBatching
from tests.models.encoders.tiny import MODELS, build
from tests.observe.metrics_text import text_of


class LengthEncoder:
    """The vector of a text is its length and its first token. Each batch waits for a permit, so
    that tests decide what waits meanwhile."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(0)
        self.sizes: list[int] = []
        self.begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def embed(self, batch):
        self.sizes.append(len(batch.spans))
        self._loop.call_soon_threadsafe(self.begun.set)
        asyncio.run_coroutine_threadsafe(self.permits.acquire(), self._loop).result(timeout=30)
        return torch.tensor(
            [[stop - start, int(batch.token_ids[start])] for start, stop in batch.spans]
        )

    def scores(self, batch):
        raise RuntimeError("it has no head")


def text(length, first=7):
    return EncodedText((first, *range(1, length)), (0,) * length)


class Running:
    """A live encoder between start and stop."""

    def __init__(self, batching: DynamicBatching, most_waiting: int = 100) -> None:
        self.encoder = LengthEncoder()
        self.live = LiveEncoder(self.encoder, batching, most_waiting)

    async def __aenter__(self):
        self.live.start()
        return self

    async def __aexit__(self, *_):
        for _ in range(100):
            self.encoder.permits.release()
        await self.live.stop()

    def ask(self, *lengths, **wishes):
        texts = [text(length) for length in lengths]
        return asyncio.create_task(self.live.encode(texts, "vector", **wishes))


def test_what_waits_meanwhile_is_one_batch_and_each_gets_its_own():
    async def run():
        async with Running(DynamicBatching(max_batch_size=3)) as running:
            first = running.ask(5)
            await running.encoder.begun.wait()
            others = [running.ask(2, 3), running.ask(4), running.ask(6)]
            await asyncio.sleep(0)
            for _ in range(3):
                running.encoder.permits.release()
            found = [each for answers in await asyncio.gather(first, *others) for each in answers]
            assert [int(each[0]) for each in found] == [5, 2, 3, 4, 6]
            assert all(each.dtype == np.float32 for each in found)
            assert running.encoder.sizes == [1, 3, 1]
            assert await running.live.encode([], "vector") == []

    asyncio.run(run())


def test_urgent_texts_go_first_and_who_leaves_is_not_encoded():
    async def run():
        async with Running(DynamicBatching(max_batch_size=1)) as running:
            first = running.ask(5)
            await running.encoder.begun.wait()
            later, leaving, urgent = running.ask(2, priority=1), running.ask(3), running.ask(4)
            await asyncio.sleep(0)
            leaving.cancel()
            for _ in range(3):
                running.encoder.permits.release()
            await asyncio.gather(first, later, urgent)
            with pytest.raises(asyncio.CancelledError):
                await leaving
            assert len(running.encoder.sizes) == 3

    asyncio.run(run())


def test_who_cannot_wait_is_told():
    async def run():
        async with Running(DynamicBatching(max_batch_size=1), most_waiting=2) as running:
            first = running.ask(5)
            await running.encoder.begun.wait()
            waiting = running.ask(2, 3)
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="too many"):
                await running.ask(1)
            for _ in range(3):
                running.encoder.permits.release()
            await asyncio.gather(first, waiting)
            blocking = running.ask(5)
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="within its time"):
                await running.ask(1, timeout_s=0.001)
            running.encoder.permits.release()
            await blocking

    asyncio.run(run())


def test_a_failure_reaches_all_who_wait_and_all_who_come():
    async def run():
        async with Running(DynamicBatching()) as running:
            with pytest.raises(EngineFailed, match="the encoder failed"):
                await running.live.encode([text(3)], "scores")
            assert running.live.failed
            with pytest.raises(EngineFailed, match="the encoder failed"):
                await running.ask(3)

    asyncio.run(run())


def test_at_the_end_nobody_waits_for_ever():
    async def run():
        running = Running(DynamicBatching(max_batch_size=1))
        async with running:
            asked = [running.ask(5), running.ask(2)]
            await running.encoder.begun.wait()
        for each in asked:
            with pytest.raises(EngineFailed, match="shutting down"):
                await each
        assert not running.live.failed

    asyncio.run(run())


def test_batches_of_a_real_encoder_give_what_each_text_gives_alone(tmp_path):
    build(MODELS["bert"], tmp_path)
    kernels, _ = choose_kernels(torch.device("cpu"), torch.float32, allow_native=True)
    form = WeightForm("float32", torch.float32, torch.device("cpu"))
    encoder = load_encoder(tmp_path, form, kernels)
    texts = [text(length, first=length) for length in (3, 9, 9, 20, 1)]

    async def run():
        live = LiveEncoder(encoder, DynamicBatching(max_batch_size=2), 100)
        live.start()
        found = await live.encode(texts, "vector")
        await live.stop()
        return found

    for each, found in zip(texts, asyncio.run(run()), strict=True):
        alone = encoder.embed(batch_of([each], encoder.device))[0].numpy()
        assert np.array_equal(found, alone)


def test_metrics_say_what_became_of_texts():
    async def run():
        async with Running(DynamicBatching(max_batch_size=2), most_waiting=3) as running:
            first = running.ask(5)
            await running.encoder.begun.wait()
            waiting, gone = running.ask(2, 3), running.ask(4)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            refused = running.ask(6)
            with pytest.raises(Overloaded):
                await refused
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            running.encoder.permits.release()
            running.encoder.permits.release()
            await asyncio.gather(first, waiting)
            told = text_of(running.live.metrics.families())

            def value(name: str, label: str = "") -> float:
                return float(re.search(rf"tandem:{name}{{[^}}]*{label}[^}}]*}} (\S+)", told)[1])

            ends = [
                value("encoder_texts_total", f'outcome="{end}"')
                for end in ("encoded", "refused", "aborted")
            ]
            assert ends == [3, 1, 1]
            assert value("encoder_tokens_total") == 10
            assert value("encoder_batch_texts_count") == 2

    asyncio.run(run())
