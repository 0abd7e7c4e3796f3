"""Writes a gateway's journal beside its event loop: turns are encoded on the loop, and compressed
and written by a thread. Where the disk is too slow or full, turns are lost and counted, and the
gateway goes on."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event, Lock

from tandem.cluster.gateway.configuration import GatewayInput
from tandem.kv.threads import SupervisedThread
from tandem.messages.gateway import GatewayEffect
from tandem.observe.journal.files import JournalFiles
from tandem.observe.journal.recorder import Recorder
from tandem.observe.journal.records import Lost, encode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """At most `queued_bytes` wait to be written. They are written once there are `chunk_bytes`, or
    after `flush_s`; a gateway that ends waits up to `linger_s` for the last ones."""

    queued_bytes: int = 32 << 20
    chunk_bytes: int = 256 << 10
    flush_s: float = 0.5
    linger_s: float = 2.0


class Journal:
    """Between `start` and `stop_recording`; `record` is for the event loop alone."""

    def __init__(
        self, recorder: Recorder, files: JournalFiles, limits: JournalLimits | None = None
    ) -> None:
        self._recorder = recorder
        self._files = files
        self._limits = limits or JournalLimits()
        self._lock = Lock()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._refused_turns = 0
        self._wanted = Event()
        self._ending = self._failed = False
        self._thread = SupervisedThread("journal", self._write_on, self._writing_failed)
        # Of the thread: what no record counts yet.
        self._uncounted_turns = 0
        self.lost_turns = 0

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def record(
        self, at_ns: int, events: Sequence[GatewayInput], effects: Sequence[GatewayEffect]
    ) -> None:
        """One turn of the machine: events and effects at this instant. Never waits."""
        if self._failed:
            self.lost_turns += 1
            # Nobody else empties it.
            self._recorder.hashes.take()
            return
        turn = self._recorder.turn(at_ns, events, effects)
        with self._lock:
            if self._waiting_bytes + len(turn) > self._limits.queued_bytes:
                self._refused_turns += 1
                return
            self._waiting.append(turn)
            self._waiting_bytes += len(turn)
            many = self._waiting_bytes >= self._limits.chunk_bytes
        if many:
            self._wanted.set()

    def stop_recording(self) -> None:
        """Write what waits, for a moment at most."""
        self._ending = True
        self._wanted.set()
        if self._thread.alive:
            self._thread.join(self._limits.linger_s)

    def _write_on(self) -> None:
        while not self._ending:
            self._wanted.wait(self._limits.flush_s)
            self._wanted.clear()
            self._write_waiting()
        self._write_waiting()
        self._files.end_file()

    def _write_waiting(self) -> None:
        with self._lock:
            turns, self._waiting, self._waiting_bytes = self._waiting, [], 0
            refused, self._refused_turns = self._refused_turns, 0
        if not turns and not refused:
            return
        before = [encode(Lost(self._uncounted_turns))] if self._uncounted_turns else []
        # What was refused came after what waited.
        after = [encode(Lost(refused))] if refused else []
        try:
            self._files.append(
                [*before, *turns, *after],
                len(turns),
                self._recorder.members,
                self._recorder.configured,
            )
        except OSError as error:
            if not self._uncounted_turns:
                logger.warning("the journal cannot be written, and misses turns: %s", error)
            refused += len(turns)
            self._uncounted_turns += refused
        else:
            if self._uncounted_turns or refused:
                logger.warning(
                    "the journal is written again; it misses %d turns in all",
                    self.lost_turns + refused,
                )
            self._uncounted_turns = 0
        self.lost_turns += refused

    def _writing_failed(self, failure: Exception) -> None:
        """The gateway goes on without."""
        self._failed = True
        logger.error("the journal ends here: %s", failure)
