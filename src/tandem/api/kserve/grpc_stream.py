"""The requests of one gRPC stream, several of which are answered at the same time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any

# So many requests of one stream at the same time; those behind them wait with their client.
_CALLS = 64
_END = object()


class RequestStream:
    """Answers of all `requests` as they come: `answers_to` gives those of one. It is over when the
    requests are and all have their answers, or when these have them and `ending` is set."""

    def __init__(
        self,
        requests: AsyncIterator[Any],
        answers_to: Callable[[Any], AsyncGenerator[Any, None]],
        ending: asyncio.Event,
    ) -> None:
        self._requests = requests
        self._answers_to = answers_to
        self._ending = ending
        # One: who reads slowly is waited for.
        self._answers: asyncio.Queue[Any] = asyncio.Queue(1)
        self._places = asyncio.Semaphore(_CALLS)

    async def responses(self) -> AsyncGenerator[Any, None]:
        """Closing it ends all that is under way."""
        answering = asyncio.create_task(self._answer_all())
        try:
            while True:
                next_answer = asyncio.ensure_future(self._answers.get())
                try:
                    await asyncio.wait(
                        {answering, next_answer}, return_when=asyncio.FIRST_COMPLETED
                    )
                    if next_answer.done():
                        yield next_answer.result()
                    elif self._answers.empty():
                        await answering
                        return
                finally:
                    next_answer.cancel()
        finally:
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering

    async def _answer_all(self) -> None:
        async with asyncio.TaskGroup() as calls:
            while (request := await self._next_request()) is not _END:
                await self._places.acquire()
                calls.create_task(self._answer(self._answers_to(request)))

    async def _next_request(self) -> Any:
        reading = asyncio.ensure_future(anext(self._requests, _END))
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else _END
        finally:
            reading.cancel()
            ending.cancel()

    async def _answer(self, answers: AsyncGenerator[Any, None]) -> None:
        try:
            async with aclosing(answers):
                async for each in answers:
                    await self._answers.put(each)
        finally:
            self._places.release()
