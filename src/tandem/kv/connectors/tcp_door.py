"""Lets those who know the secret in over TCP: a thread for each connection.

What is said over a connection once both sides have proved themselves is not known here. Whatever
comes over the port, nobody waits for ever.
"""

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tandem.kv.connector import ConnectorError
from tandem.kv.connectors import tcp_frames as frames
from tandem.kv.connectors.tcp_stream import Stream
from tandem.kv.threads import SupervisedThread, no_harm

logger = logging.getLogger(__name__)

_HANDSHAKE_CALLS = 8
_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class TcpLimits:
    """Seconds. A connection ends when the other side takes longer: `connect_s` to be reached, and
    for each message before the proofs; `silence_s` within a message; `idle_s` between two
    requests. `connections` are served at once; when there are as many, the oldest of those that
    have not proved anything yet makes room for a new one. Peers only read, unless it is `writable`:
    the pool of a worker never is."""

    connect_s: float = 2.0
    silence_s: float = 5.0
    idle_s: float = 600.0
    connections: int = 256
    writable: bool = False


class TcpDoor:
    """Listens from its making on, at `port`. Whoever comes in is `served`, in a thread of its own,
    until that raises `ConnectorError`."""

    def __init__(
        self,
        listening: socket.socket,
        credentials: frames.Credentials,
        served: Callable[[Stream], None],
        *,
        entropy: Callable[[int], bytes],
        limits: TcpLimits,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`failed` is told when nobody is let in any more for a reason that nobody foresaw."""
        self.port = int(listening.getsockname()[1])
        self._listening = listening
        self._credentials = credentials
        self._served = served
        self._entropy = entropy
        self._limits = limits
        self._failed = failed
        self._lock = threading.Lock()
        self._threads: dict[Stream, SupervisedThread] = {}
        # Those of them that have not shown that they know the secret, the oldest first.
        self._strangers: dict[Stream, None] = {}
        self._closing = threading.Event()
        self._accepting = SupervisedThread("kv-tcp-accept", self._accept, self._broke)
        self._accepting.start()

    def close(self, patience_s: float) -> None:
        """When it returns nobody is served any more."""
        if self._closing.is_set():
            return
        with self._lock:
            self._closing.set()
            threads = [self._accepting, *self._threads.values()]
            for stream in self._threads:
                stream.shut()
        # Wakes the thread that waits in accept; where that failed nobody listens any more.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(patience_s)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                # The client has gone again, or there are no descriptors left for now.
                if self._closing.wait(_RETRY_S):
                    return
                logger.warning("no KV connection accepted: %s", error)
                continue
            self._welcome(connection)

    def _broke(self, failure: Exception) -> None:
        """Whoever comes is refused at once, rather than left to wait for nobody."""
        del failure
        self._listening.close()
        self._failed()

    def _welcome(self, connection: socket.socket) -> None:
        try:
            stream = Stream(connection)
        except OSError as error:
            logger.debug("a KV connection ended at once: %s", error)
            connection.close()
            return
        # One that fails ends its own connection alone.
        thread = SupervisedThread("kv-tcp", lambda: self._serve(stream), no_harm)
        with self._lock:
            if self._has_room():
                self._threads[stream], self._strangers[stream] = thread, None
                try:
                    thread.start()
                except RuntimeError as error:
                    # The system has no thread left for now.
                    logger.warning("no KV connection served: %s", error)
                    del self._threads[stream], self._strangers[stream]
                else:
                    return
        stream.close()

    def _has_room(self) -> bool:
        """For one more connection. Strangers hold places against nobody."""
        if self._closing.is_set():
            return False
        if len(self._threads) < self._limits.connections:
            return True
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        del self._strangers[oldest]
        oldest.shut()
        return True

    def _serve(self, stream: Stream) -> None:
        try:
            self._prove(stream)
            with self._lock:
                self._strangers.pop(stream, None)
            self._served(stream)
        except ConnectorError as error:
            logger.debug("a KV connection ended: %s", error)
        finally:
            with self._lock:
                del self._threads[stream]
                self._strangers.pop(stream, None)
            stream.close()

    def _prove(self, stream: Stream) -> None:
        nonce = self._entropy(frames.NONCE_BYTES)
        stream.send([memoryview(frames.greeting(nonce))], self._limits.connect_s)
        data = bytearray(frames.ANSWER_BYTES)
        stream.receive([memoryview(data)], self._limits.connect_s, most_calls=_HANDSHAKE_CALLS)
        proof = frames.check_answer(self._credentials, nonce, bytes(data))
        stream.send([memoryview(proof)], self._limits.connect_s)


def listening_socket(host: str, port: int) -> socket.socket:
    """Raises `ConnectorError` when the address is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ConnectorError(f"cannot listen at {host}, port {port}: {error}") from error
    return listening
