"""Whether a server speaks gRPC beside HTTP, as its options say, and what that needs."""

import importlib
import importlib.util
from dataclasses import dataclass

from starlette.types import ASGIApp

from tandem.api.auth import comes_in, operator_ring
from tandem.api.config import ApiConfig
from tandem.api.key_ring import KeyRing
from tandem.config.options import ServeOptions
from tandem.config.start_notes import grpc_address
from tandem.facts.errors import InvalidConfiguration
from tandem.live.http_server import Companion, listen

# Of all clients at the same time, each with one message in memory before its share is counted.
_CALLS = 1024
_CONNECTIONS = 8192
# Of grpcio and protobuf. A package comes before what is in it, which cannot be looked for else.
_MODULES = ("grpc", "google", "google.protobuf")


@dataclass(frozen=True, slots=True)
class GrpcPort:
    """Where gRPC is spoken. A `shared` port may be that of several processes."""

    address: str
    connections: int
    shared: bool = False

    def server(self, app: ASGIApp, api: ApiConfig, context_tokens: int, ring: KeyRing) -> Companion:
        """Over this application, whose keys are on the `ring`; not running yet."""
        server = importlib.import_module("tandem.live.grpc_server")
        limits = server.GrpcLimits(
            request_bytes=api.body_bytes(context_tokens),
            answer_bytes=api.answer_bytes,
            calls=_CALLS,
            connections=self.connections,
            message_timeout_s=api.body_timeout_s,
            shared=self.shared,
        )
        operators = operator_ring(api)
        made: Companion = server.GrpcServer(
            app, self.address, limits, lambda headers: comes_in(headers, ring, operators)
        )
        return made


def grpc_port(options: ServeOptions, *, shared: bool = False) -> GrpcPort | None:
    """None where there is to be none. Raises `InvalidConfiguration` where the packages are not
    there."""
    if not options.grpc_port:
        return None
    if not all(map(importlib.util.find_spec, _MODULES)):
        raise InvalidConfiguration(
            "--grpc-port needs the packages grpcio and protobuf; pip install 'tandem[grpc]'"
        )
    if options.grpc_port == options.port:
        raise InvalidConfiguration("--grpc-port must be another one than --port")
    connections = options.max_connections or _CONNECTIONS
    return GrpcPort(grpc_address(options), connections, shared)


def try_grpc_port(options: ServeOptions) -> None:
    """Raises `InvalidConfiguration` where nobody could listen there, or somebody does."""
    if grpc_port(options) is None:
        return
    try:
        listen(options.host, options.grpc_port).close()
    except InvalidConfiguration as error:
        problem = str(error).replace("choose another --port", "choose another --grpc-port")
        raise InvalidConfiguration(
            problem.replace("choose a --port", "choose a --grpc-port")
        ) from error
