"""The listener of KV connections over TCP: lets in those who know the secret, a thread for each
connection.

What goes over a connection once both sides have proved themselves is not known here. Whatever
comes over the port, nobody waits for ever.
"""

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.connectors.tcp import protocol as frames
from tandem.kv.connectors.tcp.stream import Stream, TcpLimits, prove_to_client
from tandem.kv.threads import SupervisedThread, no_harm

logger = logging.getLogger(__name__)

_RETRY_S = 0.05


class TcpListener:
    """Listens from its making on, at `port`. Whoever comes in is given to
    `serve_connection`, in a thread of its own, until that raises `ConnectorError`."""

    def __init__(
        self,
        listening: socket.socket,
        credentials: frames.Credentials,
        serve_connection: Callable[[Stream], None],
        *,
        entropy: Callable[[int], bytes],
        limits: TcpLimits,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`failed` is called when nobody is let in any more for a reason that nobody foresaw."""
        self.port = int(listening.getsockname()[1])
        self._listening = listening
        self._credentials = credentials
        self._serve_connection = serve_connection
        self._entropy = entropy
        self._limits = limits
        self._failed = failed
        self._lock = threading.Lock()
        self._threads: dict[Stream, SupervisedThread] = {}
        # Those of them that have not shown that they know the secret, the oldest first.
        self._unproven: dict[Stream, None] = {}
        self._closing = threading.Event()
        self._accepting = SupervisedThread("kv-tcp-accept", self._accept, self._broke)
        self._accepting.start()

    def close_listener(self, patience_s: float) -> None:
        """When it returns nobody is served any more."""
        if self._closing.is_set():
            return
        with self._lock:
            self._closing.set()
            threads = [self._accepting, *self._threads.values()]
            for stream in self._threads:
                stream.shut_stream()
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
            self._admit(connection)

    def _broke(self, failure: Exception) -> None:
        """Whoever comes is refused at once, rather than left to wait for nobody."""
        del failure
        self._listening.close()
        self._failed()

    def _admit(self, connection: socket.socket) -> None:
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
                self._threads[stream], self._unproven[stream] = thread, None
                try:
                    thread.start()
                except RuntimeError as error:
                    # The system has no thread left for now.
                    logger.warning("no KV connection served: %s", error)
                    del self._threads[stream], self._unproven[stream]
                else:
                    return
        stream.close_stream()

    def _has_room(self) -> bool:
        """For one more connection. Those that have proved nothing hold places against nobody."""
        if self._closing.is_set():
            return False
        if len(self._threads) < self._limits.connections:
            return True
        oldest = next(iter(self._unproven), None)
        if oldest is None:
            return False
        del self._unproven[oldest]
        oldest.shut_stream()
        return True

    def _serve(self, stream: Stream) -> None:
        try:
            prove_to_client(stream, self._credentials, self._entropy, self._limits)
            with self._lock:
                self._unproven.pop(stream, None)
            self._serve_connection(stream)
        except ConnectorError as error:
            logger.debug("a KV connection ended: %s", error)
        finally:
            with self._lock:
                del self._threads[stream]
                self._unproven.pop(stream, None)
            stream.close_stream()
