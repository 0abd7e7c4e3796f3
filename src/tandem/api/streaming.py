"""Server-sent events over ASGI, and how the work of a call ends early: when its client leaves, for
streams and plain answers alike, or when other calls need the room that it takes."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.api.errors import Refusal, Refused, note_refusal, refusal_of
from tandem.facts.errors import TandemError

Result = TypeVar("Result")
DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


def encoded_event(payload: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + _encoder.encode(payload) + b"\n\n"


def named_event(payload: msgspec.Struct) -> bytes:
    """One server-sent event with a name: the tag of its payload."""
    name = str(payload.__struct_config__.tag).encode()
    return b"event: %b\ndata: %b\n\n" % (name, _encoder.encode(payload))


def error_event(refusal: Refusal) -> bytes:
    """The event of an error in OpenAI's usual shape."""
    return b"data: " + refusal.openai_body() + b"\n\n"


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Runs `work` to its end, or cancels it and raises `ClientGone` once the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_client_leaves(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class EvictableCall:
    """The current task as a call that may be ended so that others have room."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._is_evicted = False

    def evict(self) -> None:
        if self._task is not None:
            self._is_evicted = self._task.cancel()

    @contextmanager
    def refused_if_evicted(self, refused: Callable[[], Refused]) -> Iterator[None]:
        """Raises what `refused` gives, wherever in the block the task is, once it is evicted."""
        try:
            yield
        except asyncio.CancelledError:
            # Whoever else ends the task at the same time means it: the client may have left, too.
            if not self._is_evicted or self._task is None or self._task.uncancel():
                raise
            raise refused() from None


class EventStream(Response):
    """Sends events as they are made.

    The head goes out with the first event, so an error before it is a plain error answer; a later
    one becomes the last event. The events are closed on every way out.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        late_headers: Callable[[], Mapping[str, str]] = dict,
        failed_event: Callable[[Refusal], bytes] = error_event,
    ) -> None:
        """`late_headers` gives what is known once the first event is there, `failed_event` makes
        the last one of a stream that breaks off."""
        self._events = events
        self._failed_event = failed_event
        self._late_headers = late_headers
        self._started = False
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_all(scope, send))
        except ClientGone:
            # A reader who leaves in mid-stream is no error, and there is no answer left to give.
            if not self._started:
                raise
        finally:
            await self._events.aclose()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        try:
            async for data in self._events:
                if not self._started:
                    await self._start(send)
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TandemError as error:
            if not self._started:
                raise
            refusal = refusal_of(error)
            note_refusal(scope, refusal)
            data = self._failed_event(refusal)
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        self._started = True
        self.headers.update(self._late_headers())
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
