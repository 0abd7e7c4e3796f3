"""The way of spans from a server to the process that sends them: to make a batch of them ready for
its receiver takes tens of milliseconds of computing, for which no event loop shall wait.

Spans wait in memory, and a thread writes them into a pipe. Where that is too slow, or the process
has ended, they are lost and counted, and calls go on. The process ends with the pipe.
"""

import logging
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Lock

import msgspec

from tandem.facts.tracing import Span, TraceContext
from tandem.kv.threads import SupervisedThread

logger = logging.getLogger(__name__)

# So much waits at most; it is written this often, and at the end for so long.
QUEUED_BYTES = 16 << 20
FLUSH_S = 0.2
LINGER_S = 3.0
LENGTH_BYTES = COUNT_BYTES = 8
# Numbers that are read at once.
_COUNTS = 1 << 12


class HandedSpan(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """A span with all below it: that of the `call` itself, or (`is_below`) a part of it."""

    span: Span
    call: TraceContext
    is_below: bool

    @property
    def spans(self) -> int:
        return _count(self.span)


class HandedHistory(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """A request of the `call`, to this model, as its gateway has packed it. How many spans that is
    comes out when they are made."""

    history: bytes
    model: str
    call: TraceContext
    spans = 1


Handed = HandedSpan | HandedHistory


class SpanPipe:
    """To a process of this `command`, which reads what is `Handed` from its standard input, each
    behind its length, and writes to its standard output how many spans it has lost so far, one
    number after the other. Use it from one thread."""

    def __init__(self, command: Sequence[str], queued_bytes: int = QUEUED_BYTES) -> None:
        self._queued_bytes = queued_bytes
        self._encode = msgspec.msgpack.Encoder().encode
        # Ctrl-C in a terminal is not for it: it ends with the pipe.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._lock = Lock()
        self._waiting: list[bytes] = []
        self._waiting_bytes = self._waiting_spans = 0
        self._lost_here = self._lost_there = 0
        self._wanted = Event()
        self._ending = self._is_broken = False
        self._thread = SupervisedThread("spans", self._write_on, self._writing_failed)
        self._thread.start()

    def lost_spans(self) -> int:
        """Here, and there as far as it is known."""
        with suppress(BlockingIOError):
            while not self._output.closed and (
                counts := os.read(self._output.fileno(), _COUNTS * COUNT_BYTES)
            ):
                self._lost_there = int.from_bytes(counts[-COUNT_BYTES:])
        return self._lost_here + self._lost_there

    def hand_over(self, handed: Handed) -> None:
        """Never waits."""
        encoded, spans = self._encode(handed), handed.spans
        with self._lock:
            if self._is_broken or self._waiting_bytes + len(encoded) > self._queued_bytes:
                self._lost_here += spans
                return
            self._waiting += (len(encoded).to_bytes(LENGTH_BYTES), encoded)
            self._waiting_bytes += len(encoded)
            self._waiting_spans += spans

    def close_pipe(self) -> None:
        """Have all that waits sent, for a moment at most. Then the process has ended."""
        self._ending = True
        self._wanted.set()
        self._thread.join(LINGER_S)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LINGER_S)
        self._process.kill()
        self._process.wait()
        self.lost_spans()
        self._output.close()

    def _write_on(self) -> None:
        try:
            while not self._ending:
                self._wanted.wait(FLUSH_S)
                self._write_waiting()
            self._write_waiting()
        finally:
            self._input.close()

    def _write_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            spans, self._waiting_bytes, self._waiting_spans = self._waiting_spans, 0, 0
        view = memoryview(b"".join(waiting))
        try:
            while view:
                view = view[os.write(self._input.fileno(), view) :]
        except BrokenPipeError:
            with self._lock:
                self._is_broken = True
                self._lost_here += spans
            logger.error("the process that sends traces has ended: from now on they are lost")

    def _writing_failed(self, failure: Exception) -> None:
        """Calls go on without."""
        self._is_broken = True
        logger.error("from now on traces are lost: %s", failure)


def _count(span: Span) -> int:
    """It and all below it."""
    return 1 + sum(map(_count, span.children))
