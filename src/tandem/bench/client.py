"""The HTTP client of an OpenAI-compatible server: asks, streams, and names in one line what failed.

Owns the connections. It knows nothing of workloads or metrics; callers read the clock themselves.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from tandem.bench.responses import (
    Chunk,
    Detokenized,
    EventParser,
    ModelList,
    ServedModel,
    Tokenized,
    TokenizerInfo,
    error_text,
)
from tandem.facts.errors import InvalidConfiguration, TandemError

_DONE = b"[DONE]"
_decode_chunk = msgspec.json.Decoder(Chunk).decode
_Answer = TypeVar("_Answer")


class RequestFailed(TandemError):
    """A request got no (whole) answer. Equal texts are equal causes, so failures can be counted."""


class ServerUnreachable(RequestFailed):
    """Nobody listens at the address."""


class ServerRefused(RequestFailed):
    """The server answered with an error status; `retry_after_s` is its Retry-After, if it gave
    one in seconds."""

    def __init__(self, status: int, problem: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"HTTP {status}: {problem}")
        self.status = status
        self.problem = problem
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Endpoint:
    """Where the server is. `base_url` may end in /v1 or not; `timeout_s` bounds a whole request."""

    base_url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0
    connect_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfiguration(
                f"--url must look like http://127.0.0.1:8000, got {self.base_url!r}"
            )

    @property
    def root_url(self) -> str:
        return self.base_url.rstrip("/").removesuffix("/v1")


class Client:
    """Open with `async with`; one instance serves any number of requests at once."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        key = self.endpoint.api_key
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        timeout = aiohttp.ClientTimeout(
            total=self.endpoint.timeout_s, sock_connect=self.endpoint.connect_timeout_s
        )
        # No limit of connections: how many requests are in flight is the workload's to decide.
        # Idle ones are dropped before the server does so (uvicorn: after 5 s), as a request on a
        # connection that is being closed fails.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=headers, read_bufsize=1 << 20
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def models(self) -> list[ServedModel]:
        """What the server serves. Raises `RequestFailed`."""
        return _decoded(await self._request("GET", "/v1/models"), ModelList).data

    async def choose_model(self, name: str | None) -> ServedModel:
        """The model called `name`, or the first one served. Raises `RequestFailed`."""
        models = await self.models()
        if name is None and models:
            return models[0]
        for model in models:
            if model.id == name:
                return model
        if not models and name is not None:
            return ServedModel(id=name)
        served = ", ".join(model.id for model in models) or "no model"
        raise RequestFailed(f"the server serves {served}, not {name!r}")

    async def get(self, path: str) -> bytes:
        """The body of an answer to GET. Raises `RequestFailed`."""
        return await self._request("GET", path)

    async def token_ids(self, model: str, text: str) -> list[int]:
        """The token ids of a text; `ServerRefused` (404) where the server has no /tokenize."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        return _decoded(await self._request("POST", "/tokenize", body), Tokenized).tokens

    async def text_of(self, model: str, token_ids: Sequence[int]) -> str:
        """The text of token ids, special ones shown; `ServerRefused` (404) where the server has no
        /detokenize."""
        body = {"model": model, "tokens": list(token_ids)}
        return _decoded(await self._request("POST", "/detokenize", body), Detokenized).prompt

    async def special_ids(self) -> frozenset[int]:
        """The ids of special tokens; none where the server has no /tokenizer_info."""
        try:
            return _decoded(
                await self._request("GET", "/tokenizer_info"), TokenizerInfo
            ).special_ids
        except ServerRefused:
            return frozenset()

    async def complete(self, path: str, body: Mapping[str, Any]) -> Chunk:
        """A whole answer, not streamed. Raises `RequestFailed`."""
        return _decoded(await self._request("POST", path, body), Chunk)

    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """The events of a streamed answer, as they arrive, up to "[DONE]".

        Closing the iterator closes the connection, which tells the server to stop.
        Raises `RequestFailed`, also when the stream ends early or carries an error.
        """
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        parser = EventParser()
        async with self._response("POST", path, body, headers) as response:
            async for data in response.content.iter_any():
                for payload in parser.feed(data):
                    if payload == _DONE:
                        return
                    yield _event(payload)
        raise RequestFailed("the stream ended before its [DONE]")

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> bytes:
        async with self._response(method, path, body) as response:
            return await response.read()

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One without an error status. What goes wrong with it while the block runs is raised as
        `RequestFailed`."""
        assert self._session is not None, "open the client with `async with`"
        url = self.endpoint.root_url + path
        data = None if body is None else msgspec.json.encode(body)
        try:
            request = self._session.request(method, url, data=data, headers=headers)
            async with request as response:
                await _check_status(response)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> RequestFailed:
        url = self.endpoint.root_url
        if isinstance(error, aiohttp.ClientConnectorError):
            return ServerUnreachable(
                f"no server answers at {url}; start one with `tandem serve`, "
                "or name another with --url"
            )
        if isinstance(error, asyncio.TimeoutError):
            return RequestFailed(f"no answer within {self.endpoint.timeout_s:g} s")
        if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionError):
            return RequestFailed("the server closed the connection")
        return RequestFailed(f"{type(error).__name__}: {error}".rstrip(": "))


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    body = await response.read()
    try:
        problem = error_text(msgspec.json.decode(body))
    except msgspec.DecodeError:
        problem = error_text(body.decode(errors="replace")) or response.reason or "no reason given"
    raise ServerRefused(response.status, problem, _seconds(response.headers.get("Retry-After")))


def _seconds(text: str | None) -> float | None:
    """None for a date, too."""
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _event(payload: bytes) -> Chunk:
    try:
        chunk = _decode_chunk(payload)
    except msgspec.MsgspecError as error:
        raise RequestFailed(f"an event is not the JSON of a completion: {error}") from error
    if chunk.error is not None:
        raise RequestFailed(f"the server stopped the answer: {error_text(chunk.error)}")
    return chunk


def _decoded(body: bytes, shape: type[_Answer]) -> _Answer:
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.MsgspecError as error:
        raise RequestFailed(f"the answer is not that of an OpenAI server: {error}") from error
