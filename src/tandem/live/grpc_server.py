"""The gRPC server beside the HTTP server, in the same event loop. Imported where one is wanted
alone: it needs packages that not everybody has."""

from collections.abc import Callable
from dataclasses import dataclass

import grpc
from starlette.datastructures import Headers
from starlette.types import ASGIApp

from tandem.api.kserve.grpc_door import InferenceDoor
from tandem.facts.errors import InvalidConfiguration

# Beside the values of a message, its own names and numbers.
_ROOM_BYTES = 64 << 10
_IDLE_CONNECTION_MS = 5 * 60 * 1000
_HANDSHAKE_MS = 10_000
_CALLS_PER_CONNECTION = 128


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What clients may cost: the bytes of a request and of an answer, how long a request may take
    to arrive or an answer to be taken, calls at the same time, and connections. A `shared` port may
    have several servers, as that of HTTP."""

    request_bytes: int
    answer_bytes: int
    calls: int
    connections: int
    message_timeout_s: float = 60.0
    shared: bool = False


class GrpcServer:
    """Over the HTTP application `app`, for callers whose headers it `admits`. Use it from one event
    loop."""

    def __init__(
        self, app: ASGIApp, address: str, limits: GrpcLimits, admits: Callable[[Headers], bool]
    ) -> None:
        self._address, self._limits = address, limits
        self._door = InferenceDoor(app, admits, limits.message_timeout_s)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """From now on `port` says where it listens. Raises `InvalidConfiguration` where the address
        cannot be had."""
        limits = self._limits
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", limits.request_bytes + _ROOM_BYTES),
                ("grpc.max_send_message_length", limits.answer_bytes + _ROOM_BYTES),
                ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION),
                ("grpc.max_allowed_incoming_connections", limits.connections),
                ("grpc.max_connection_idle_ms", _IDLE_CONNECTION_MS),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.so_reuseport", int(limits.shared)),
            ),
            maximum_concurrent_rpcs=limits.calls,
        )
        server.add_generic_rpc_handlers((self._door.handlers(),))
        try:
            self.port = server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise InvalidConfiguration(
                f"cannot listen on {self._address}; choose another --grpc-port"
            ) from error
        await server.start()
        self._server = server

    async def stop(self, patience_s: float) -> None:
        """No new calls; those under way may end within so many seconds."""
        if self._server is not None:
            self._door.end_streams()
            await self._server.stop(patience_s)
