"""A gateway that sends whatever it likes, byte for byte."""

from collections import Counter
from typing import Any, TypeVar

import zmq

from tandem.live.channels.keys import KeyPair
from tandem.live.channels.sockets import ChannelLimits, gateway_socket
from tandem.live.clock import now_ns
from tandem.messages.cluster import Audit, Audited, Register, Registered
from tandem.messages.codec import TO_GATEWAY, TO_WORKER

PATIENCE_MS = 60_000
Message = TypeVar("Message")


class RawGateway:
    """One worker at a time: the last that registered."""

    def __init__(self, own: KeyPair, workers: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = gateway_socket(self._context, own, ChannelLimits())
        self._socket.rcvtimeo = PATIENCE_MS
        self._socket.sndtimeo = PATIENCE_MS
        self._socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT).decode()
        self._peer = b""

    def register(self, terms: Registered) -> None:
        """Let the next worker in."""
        self.receive(Register)
        self.send(TO_WORKER.encode(terms))

    def receive(self, kind: type[Message]) -> Message:
        """The next message of this type; others are passed over, but not for ever."""
        passed = Counter[str]()
        deadline_ns = now_ns() + PATIENCE_MS * 1_000_000
        while now_ns() < deadline_ns:
            peer, body = self._socket.recv_multipart()
            message: Any = TO_GATEWAY.decode(body)
            if isinstance(message, kind):
                self._peer = peer
                return message
            passed[type(message).__name__] += 1
        raise AssertionError(f"no {kind.__name__}, but {passed}")

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart([self._peer, *frames])

    def audit(self) -> Audited:
        self.send(TO_WORKER.encode(Audit()))
        return self.receive(Audited)

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()
