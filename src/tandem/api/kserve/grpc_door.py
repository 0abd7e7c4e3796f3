"""The Open Inference Protocol over gRPC. Each call becomes one of the HTTP application, in the same
process: so keys, limits, errors, metrics, the access log and what happens when a client leaves are
those of HTTP.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import msgspec
from google.protobuf.message import DecodeError
from starlette.datastructures import Headers
from starlette.types import ASGIApp

from tandem.api.kserve import grpc_messages as messages
from tandem.api.kserve.answer_writer import FINAL
from tandem.api.kserve.answers import ModelMetadata, ServerMetadata
from tandem.api.kserve.app_call import (
    AppAnswer,
    AppCaller,
    AppRequest,
    BrokenAnswer,
    app_call,
)
from tandem.api.kserve.grpc_calls import INTERNAL, CallFailed, caller_of, failure_of
from tandem.api.kserve.grpc_stream import RequestStream
from tandem.api.kserve.grpc_translation import infer_body, infer_response, metadata_response
from tandem.facts.errors import InvalidRequest

_EVENT = b"data: "
_METADATA_PATH = "/v2"
_NO_MESSAGE = "the message cannot be read: it is not the one of this method"


class _Event(msgspec.Struct):
    """An event of a stream, as far as it is an error."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class _InferCall:
    """An inference as a call of the application, without the message that it came in. Answers
    have their values `as_bytes` where it had."""

    request: AppRequest
    as_bytes: bool


class InferenceDoor:
    """The methods of the service, over the HTTP application `app`. Who may not come in, as `admits`
    says of the headers, is refused before anything more is read. The message of a call, and the
    taking of one that is sent, may each take `message_timeout_s`."""

    def __init__(
        self, app: ASGIApp, admits: Callable[[Headers], bool], message_timeout_s: float
    ) -> None:
        self._app = app
        self._admits = admits
        self._message_timeout_s = message_timeout_s
        self._ending = asyncio.Event()

    def end_streams(self) -> None:
        """No stream takes more requests: each ends with the answers that are under way."""
        self._ending.set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """For a server of `grpc.aio`. All are handlers of streams: those of single messages would
        be called with the message alone, when it is in memory already."""
        named = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ServerMetadata": self._server_metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
        }
        methods = {name: self._handler(name, self._single(each)) for name, each in named.items()}
        methods["ModelStreamInfer"] = self._handler("ModelStreamInfer", self._model_stream_infer)
        return grpc.method_handlers_generic_handler(messages.SERVICE, methods)

    def _handler(self, name: str, method: Callable[..., Any]) -> grpc.RpcMethodHandler:
        request = "ModelInferRequest" if name == "ModelStreamInfer" else f"{name}Request"

        async def answer(requests: AsyncIterator[Any], context: Any) -> None:
            caller = caller_of(context)
            try:
                if name not in ("ServerLive", "ServerReady"):
                    await self._check_key(caller)
                async with aclosing(method(requests, caller)) as responses:
                    async for response in responses:
                        await self._send(response, context)
            except CallFailed as error:
                await context.abort(error.code, error.message, error.trailing)

        return grpc.stream_stream_rpc_method_handler(
            answer,
            request_deserializer=_reader_of(messages.message_class(request)),
            response_serializer=messages.message_class(f"{name}Response").SerializeToString,
        )

    def _single(
        self, method: Callable[[Any, AppCaller], Coroutine[Any, Any, Any]]
    ) -> Callable[[AsyncIterator[Any], AppCaller], AsyncGenerator[Any, None]]:
        """A method with one request and one response."""

        async def answer(
            requests: AsyncIterator[Any], caller: AppCaller
        ) -> AsyncGenerator[Any, None]:
            yield await method(await self._message(requests), caller)

        return answer

    async def _message(self, requests: AsyncIterator[Any]) -> Any:
        try:
            async with asyncio.timeout(self._message_timeout_s):
                request = await anext(requests, None)
        except TimeoutError as error:
            raise CallFailed(408, "the message did not arrive in time") from error
        if request is None:
            raise CallFailed(400, _NO_MESSAGE)
        return request

    async def _send(self, response: Any, context: Any) -> None:
        try:
            async with asyncio.timeout(self._message_timeout_s):
                await context.write(response)
        except TimeoutError as error:
            raise CallFailed(408, "the answer was not taken in time") from error

    async def _check_key(self, caller: AppCaller) -> None:
        """Whom the keys do not admit the application refuses, and logs, as it does over HTTP."""
        if not self._admits(Headers(raw=list(caller.headers))):
            await self._read(_METADATA_PATH, caller)

    async def _server_live(self, _: Any, caller: AppCaller) -> Any:
        return messages.ServerLiveResponse(live=await self._is_good("/v2/health/live", caller))

    async def _server_ready(self, _: Any, caller: AppCaller) -> Any:
        return messages.ServerReadyResponse(ready=await self._is_good("/v2/health/ready", caller))

    async def _model_ready(self, request: Any, caller: AppCaller) -> Any:
        path = f"{_model_path(request.name, request.version)}/ready"
        return messages.ModelReadyResponse(ready=await self._is_good(path, caller))

    async def _server_metadata(self, _: Any, caller: AppCaller) -> Any:
        body = await self._read(_METADATA_PATH, caller)
        told = msgspec.json.decode(body, type=ServerMetadata)
        return messages.ServerMetadataResponse(
            name=told.name, version=told.version, extensions=told.extensions
        )

    async def _model_metadata(self, request: Any, caller: AppCaller) -> Any:
        path = _model_path(request.name, request.version)
        if path.endswith("/ready"):
            # It means something else there.
            raise CallFailed(404, f"the model {request.name[:128]!r} does not exist")
        body = await self._read(path, caller)
        return metadata_response(msgspec.json.decode(body, type=ModelMetadata))

    async def _model_infer(self, request: Any, caller: AppCaller) -> Any:
        call = _infer_call(request)
        # It is not kept while the answer is made.
        del request
        async with aclosing(self._infer(call, caller, streams=False)) as responses:
            return await anext(responses)

    async def _model_stream_infer(
        self, requests: AsyncIterator[Any], caller: AppCaller
    ) -> AsyncGenerator[Any, None]:
        """Answers of all requests as they come: which is whose, their ids say. An error is one of
        them and ends its own request alone."""
        stream = RequestStream(
            requests, lambda request: self._stream_one(request, caller), self._ending
        )
        async with aclosing(stream.responses()) as responses:
            async for response in responses:
                yield response

    async def _stream_one(self, request: Any, caller: AppCaller) -> AsyncGenerator[Any, None]:
        if request is None:
            yield messages.ModelStreamInferResponse(error_message=_NO_MESSAGE)
            return
        named = messages.ModelInferResponse(
            model_name=request.model_name, model_version=request.model_version, id=request.id
        )
        try:
            call = _infer_call(request)
            del request
            async with aclosing(self._infer(call, caller, streams=True)) as answers:
                async for response in answers:
                    yield messages.ModelStreamInferResponse(infer_response=response)
        except CallFailed as error:
            yield messages.ModelStreamInferResponse(
                error_message=error.message, infer_response=named
            )

    async def _infer(
        self, call: _InferCall, caller: AppCaller, *, streams: bool
    ) -> AsyncGenerator[Any, None]:
        """One response, or where the client has `stream` true, one for each event."""
        as_bytes = call.as_bytes
        async with self._called(call.request, caller) as answer:
            if answer.status != 200:
                raise await failure_of(answer)
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                if not streams:
                    raise CallFailed(400, "stream must be false here; ModelStreamInfer streams")
                async for event in _events(answer):
                    yield _response_of_event(event, as_bytes=as_bytes)
                return
            parameters = {FINAL: True} if streams else {}
            whole = await answer.body()
            yield infer_response(answer.headers, whole, as_bytes=as_bytes, parameters=parameters)

    @asynccontextmanager
    async def _called(self, request: AppRequest, caller: AppCaller) -> AsyncIterator[AppAnswer]:
        try:
            async with app_call(self._app, request, caller) as answer:
                yield answer
        except BrokenAnswer as error:
            raise CallFailed(500, INTERNAL) from error

    async def _is_good(self, path: str, caller: AppCaller) -> bool:
        async with self._called(AppRequest("GET", path), caller) as answer:
            if answer.status not in (200, 404, 503):
                raise await failure_of(answer)
            return answer.status == 200

    async def _read(self, path: str, caller: AppCaller) -> bytes:
        async with self._called(AppRequest("GET", path), caller) as answer:
            if answer.status != 200:
                raise await failure_of(answer)
            return await answer.body()


def _infer_call(request: Any) -> _InferCall:
    path = f"{_model_path(request.model_name, request.model_version)}/infer"
    try:
        headers, body = infer_body(request)
    except InvalidRequest as error:
        raise CallFailed(400, str(error)) from error
    return _InferCall(
        AppRequest("POST", path, headers, body), as_bytes=bool(request.raw_input_contents)
    )


def _reader_of(message: Any) -> Callable[[bytes], Any]:
    """Gives None for bytes that are no such message."""

    def read(data: bytes) -> Any:
        try:
            return message.FromString(data)
        except DecodeError:
            return None

    return read


def _model_path(name: str, version: str) -> str:
    return f"/v2/models/{name}/versions/{version}" if version else f"/v2/models/{name}"


async def _events(answer: AppAnswer) -> AsyncIterator[bytes]:
    """The data of each: the application never sends a part of one."""
    async for part in answer.parts():
        for event in part.split(b"\n\n"):
            if event.startswith(_EVENT):
                yield event.removeprefix(_EVENT)


def _response_of_event(event: bytes, *, as_bytes: bool) -> Any:
    problem = msgspec.json.decode(event, type=_Event).error
    if problem is not None:
        raise CallFailed(500, problem)
    return infer_response({}, event, as_bytes=as_bytes, parameters={})
