"""An encoder in this process: its queue on the event loop, its batches in a thread.

Performs the effects of the queue's machine and nothing more; all deciding is in the machine.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Protocol

import torch

from tandem.cluster.encoding.batcher import EncodingBatcher, EncodingEffect, EncodingEvent
from tandem.facts.encoder import EncodedText
from tandem.facts.encoding import Numbers, Wanted
from tandem.facts.errors import EngineFailed, Overloaded
from tandem.live.clock import NS_PER_S, now_ns
from tandem.live.driver import Driver, EventInbox
from tandem.live.engine_thread import WorkQueueThread
from tandem.messages.encoding import (
    BatchEncoded,
    EncodeBatch,
    EncodingsArrived,
    EncodingsCancelled,
    EncodingTimePassed,
    ExpireEncodings,
    RefuseEncodings,
)
from tandem.models.encoders.batch import EncoderBatch, batch_of
from tandem.observe.encoder_metrics import EncoderMetrics, TextEnd
from tandem.policy.dynamic_batching import DynamicBatching

logger = logging.getLogger(__name__)

# A second is how long a full queue mostly needs.
RETRY_AFTER_S = 1.0
CLOSED = "the server is shutting down"


class BatchEncoder(Protocol):
    """What the thread needs of an encoder."""

    device: torch.device

    def embed(self, batch: EncoderBatch) -> torch.Tensor: ...

    def scores(self, batch: EncoderBatch) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """A text that somebody waits for since `arrived_ns`."""

    text: EncodedText
    wanted: Wanted
    answer: "asyncio.Future[Numbers]"
    arrived_ns: int


@dataclass(frozen=True, slots=True)
class _Batch:
    number: int
    asked: tuple[_Asked, ...]
    began_ns: int


class LiveEncoder:
    """Use it from one event loop, between `start` and `stop`. At most `most_waiting` texts wait.
    `threads` bounds the CPU threads of a batch (0: as torch has it). Metrics have `name`."""

    def __init__(
        self,
        encoder: BatchEncoder,
        batching: DynamicBatching,
        most_waiting: int,
        threads: int = 0,
        name: str = "",
    ) -> None:
        self._encoder = encoder
        self._threads = threads
        self._machine = EncodingBatcher(batching, most_waiting)
        self.metrics = EncoderMetrics(name, lambda: self._machine.waiting)
        self._inbox = EventInbox[EncodingEvent]()
        self._numbers = count()
        # All whose batch has not begun, by the number that the machine knows them by.
        self._waiting: dict[int, _Asked] = {}
        self._running: dict[int, _Batch] = {}
        self._thread = WorkQueueThread[_Batch](self._work, self._thread_failed)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed_because: str | None = None

    @property
    def failed(self) -> bool:
        """It broke: only a restart helps."""
        return self._closed_because not in (None, CLOSED)

    def start(self) -> None:
        """On the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        driver = Driver[EncodingEvent, EncodingEffect, None](
            self._machine, self._inbox, self._perform, EncodingTimePassed()
        )
        self._task = asyncio.create_task(driver.run(), name="encoder queue")

    async def stop(self) -> None:
        """Whoever waits gets an error; a batch that runs is finished, for nobody."""
        self._close(CLOSED)
        if self._task is not None:
            self._task.cancel()
        self._thread.finish()
        await asyncio.to_thread(self._thread.join)

    async def encode(
        self,
        texts: Sequence[EncodedText],
        wanted: Wanted,
        *,
        priority: int = 0,
        timeout_s: float = 0.0,
    ) -> list[Numbers]:
        """See the port `Encoders`. A call that is cancelled leaves the queue."""
        if self._closed_because is not None:
            raise EngineFailed(self._closed_because)
        if not texts:
            return []
        loop, arrived_ns = asyncio.get_running_loop(), now_ns()
        asked = {
            next(self._numbers): _Asked(text, wanted, loop.create_future(), arrived_ns)
            for text in texts
        }
        self._waiting |= asked
        numbers, tokens = tuple(asked), tuple(len(text.token_ids) for text in texts)
        timeout_ns = int(timeout_s * NS_PER_S)
        self._inbox.enqueue(EncodingsArrived(numbers, tokens, priority, timeout_ns))
        answers = [each.answer for each in asked.values()]
        try:
            return list(await asyncio.gather(*answers))
        finally:
            left = tuple(number for number in numbers if self._waiting.pop(number, None))
            if left:
                self.metrics.texts_left(len(left), TextEnd.ABORTED)
                self._inbox.enqueue(EncodingsCancelled(left))
            for answer in answers:
                # The errors of others of the call, of which one was raised.
                if answer.done() and not answer.cancelled():
                    answer.exception()
                answer.cancel()

    def _perform(self, effects: Sequence[EncodingEffect], instant_ns: int) -> None:
        for effect in effects:
            match effect:
                case EncodeBatch(number, texts):
                    # Whoever left in this very turn is encoded for nobody.
                    found = (self._waiting.pop(text, None) for text in texts)
                    asked = tuple(each for each in found if each is not None)
                    batch = _Batch(number, asked, instant_ns)
                    waited_ns = [instant_ns - each.arrived_ns for each in asked]
                    self.metrics.batch_began(each / NS_PER_S for each in waited_ns)
                    self._running[number] = batch
                    self._thread.submit(batch)
                case RefuseEncodings(texts):
                    problem = "too many texts are waiting to be encoded"
                    self._refuse(texts, TextEnd.REFUSED, problem)
                case ExpireEncodings(texts):
                    problem = "a text was not encoded within its time"
                    self._refuse(texts, TextEnd.EXPIRED, problem)

    def _refuse(self, texts: Sequence[int], end: TextEnd, problem: str) -> None:
        self.metrics.texts_left(len(texts), end)
        for text in texts:
            asked = self._waiting.pop(text, None)
            if asked is not None and not asked.answer.done():
                asked.answer.set_exception(Overloaded(problem, RETRY_AFTER_S))

    def _work(self) -> None:
        """In the thread."""
        loop = self._loop
        assert loop is not None
        if self._threads:
            torch.set_num_threads(self._threads)
        for batch in self._thread.work():
            numbers = self._encoded([each for each in batch.asked if not each.answer.done()])
            loop.call_soon_threadsafe(self._encoded_batch, batch, numbers)

    @torch.inference_mode()
    def _encoded(self, asked: Sequence[_Asked]) -> list[tuple[_Asked, Numbers]]:
        done: list[tuple[_Asked, Numbers]] = []
        for wanted, run in (("vector", self._encoder.embed), ("scores", self._encoder.scores)):
            some = [each for each in asked if each.wanted == wanted]
            if some:
                batch = batch_of([each.text for each in some], self._encoder.device)
                done += zip(some, run(batch).float().cpu().numpy(), strict=True)
        return done

    def _encoded_batch(self, batch: _Batch, numbers: Sequence[tuple[_Asked, Numbers]]) -> None:
        tokens = sum(len(asked.text.token_ids) for asked, _ in numbers)
        seconds = (now_ns() - batch.began_ns) / NS_PER_S
        self.metrics.batch_ended(len(numbers), tokens, seconds)
        for asked, found in numbers:
            if not asked.answer.done():
                asked.answer.set_result(found)
        self._running.pop(batch.number, None)
        self._inbox.enqueue(BatchEncoded(batch.number))

    def _thread_failed(self, failure: Exception) -> None:
        # The log has the cause; this text reaches clients.
        del failure
        assert self._loop is not None
        self._loop.call_soon_threadsafe(partial(self._close, "the encoder failed"))

    def _close(self, reason: str) -> None:
        """From now on nothing is encoded; whoever waits gets an error."""
        self._closed_because = self._closed_because or reason
        asked = [*self._waiting.values()]
        asked += [each for batch in self._running.values() for each in batch.asked]
        for each in asked:
            if not each.answer.done():
                each.answer.set_exception(EngineFailed(self._closed_because))
        self._waiting.clear()
        self._running.clear()
