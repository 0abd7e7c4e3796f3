"""Calls of the Open Inference Protocol as clients of it make them over gRPC: its messages, stubs of
its service, and a server in a thread."""

import asyncio
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from starlette.types import ASGIApp

from tandem.api.auth import comes_in, operator_ring
from tandem.api.config import ApiConfig
from tandem.api.key_ring import KeyRing
from tandem.api.kserve.grpc_messages import SERVICE, ModelInferRequest, message_class
from tandem.live.grpc_server import GrpcLimits, GrpcServer
from tests.api.inference_calls import raw_texts

PATIENCE_S = 20.0
OPEN = ApiConfig()
LIMITS = GrpcLimits(request_bytes=1 << 20, answer_bytes=1 << 20, calls=100, connections=100)


def infer_request(*prompts: str, stream: bool = False, model: str = "tiny", **parameters: Any):
    """The message of a call, its texts as bytes."""
    request = ModelInferRequest(model_name=model)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[len(prompts)])
    request.raw_input_contents.append(raw_texts(*(each.encode() for each in prompts)))
    if stream:
        request.parameters["stream"].bool_param = True
    for name, value in parameters.items():
        kind = {bool: "bool", int: "int64", float: "double", str: "string"}[type(value)]
        setattr(request.parameters[name], f"{kind}_param", value)
    return request


def output_texts(response) -> list[str]:
    """Of a response with its values as bytes."""
    names = [each.name for each in response.outputs]
    raw, found = response.raw_output_contents[names.index("text_output")], []
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        found.append(raw[4 : 4 + length].decode())
        raw = raw[4 + length :]
    return found


class Stubs:
    """The methods of the service, over a channel."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def call(self, name: str, request: Any = None, **more: Any) -> Any:
        """One answer. Raises `grpc.RpcError`."""
        return self.method(name)(
            message_class(f"{name}Request")() if request is None else request,
            timeout=PATIENCE_S,
            **more,
        )

    def method(self, name: str) -> Any:
        return self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=serialized,
            response_deserializer=message_class(f"{name}Response").FromString,
        )

    def stream(self, requests: Iterator[Any], name: str = "ModelStreamInfer", **more: Any) -> Any:
        method = self.channel.stream_stream(
            f"/{SERVICE}/{name}",
            request_serializer=serialized,
            response_deserializer=message_class(f"{name}Response").FromString,
        )
        return method(requests, timeout=PATIENCE_S, **more)


def serialized(request: Any) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


class RunningGrpc:
    """A server in a thread."""

    def __init__(self, app: ASGIApp, limits: GrpcLimits, config: ApiConfig) -> None:
        ring, operators = KeyRing(config), operator_ring(config)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = GrpcServer(
            app, "127.0.0.1:0", limits, lambda headers: comes_in(headers, ring, operators)
        )
        self.run(self.server.start())

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def close(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE_S)
        self.loop.close()

    async def _stop(self) -> None:
        await self.server.stop(0)
        # What has ended by that still has a last turn.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=PATIENCE_S / 2)


@contextmanager
def running_grpc(
    app: ASGIApp, limits: GrpcLimits = LIMITS, config: ApiConfig = OPEN
) -> Iterator[RunningGrpc]:
    running = RunningGrpc(app, limits, config)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def stubs_of(
    app: ASGIApp, limits: GrpcLimits = LIMITS, config: ApiConfig = OPEN
) -> Iterator[Stubs]:
    """A client of the application by gRPC, whose keys are those of `config`."""
    with running_grpc(app, limits, config) as running:
        stubs = Stubs(running.server.port)
        with stubs.channel:
            yield stubs
