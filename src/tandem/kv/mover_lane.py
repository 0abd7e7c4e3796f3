"""The thread that works one connector: a peer that hangs there holds up no other way of moving."""

from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from tandem.facts.kv_export import Endpoint
from tandem.kv.connector import Connector
from tandem.kv.mover_config import MoverConfig
from tandem.kv.mover_piece import Workplace
from tandem.kv.mover_reader import Part, Reader, ReadingStatistics
from tandem.kv.threads import SupervisedThread


@dataclass(frozen=True, slots=True)
class LaneCalls:
    """Called from the lane's thread: a part is over; the thread broke; what time it is."""

    ended: Callable[[str, Part], None]
    failed: Callable[[], None]
    now_ns: Callable[[], int]


class Lane:
    """Methods return at once, from any thread; `join` excepted. After `close` everything under way
    ends, then the thread."""

    def __init__(
        self, connector: Connector, place: Workplace, config: MoverConfig, calls: LaneCalls
    ) -> None:
        self.name = connector.name
        self._reader = Reader(connector, place, config, lambda part: calls.ended(self.name, part))
        self.endpoint = Endpoint(connector.name, connector.describe())
        self._connector = connector
        self._calls = calls
        self._closing = False
        self._commands: SimpleQueue[Callable[[int], None]] = SimpleQueue()
        self._thread = SupervisedThread(f"kv {self.name}", self._run, self._failed)

    @property
    def statistics(self) -> ReadingStatistics:
        return self._reader.statistics

    def start(self) -> None:
        self._thread.start()

    def read(self, part: Part, description: bytes) -> None:
        self._commands.put(lambda now_ns: self._reader.add(part, description, now_ns))

    def stop(self, move_id: int, problem: str) -> None:
        self._commands.put(lambda now_ns: self._reader.stop(move_id, problem, now_ns))

    def forget(self, peer: str, problem: str) -> None:
        self._commands.put(lambda now_ns: self._reader.forget(peer, problem, now_ns))

    def close(self) -> None:
        self._commands.put(self._close)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, close the connector, and with its help wait again."""
        self._thread.join(timeout_s)
        self._connector.close()
        self._thread.join(timeout_s)

    def _close(self, now_ns: int) -> None:
        self._closing = True
        self._reader.stop(None, "the worker is leaving", now_ns)

    def _failed(self, failure: Exception) -> None:
        """No part ends any more: the process does."""
        del failure
        if not self._closing:
            self._calls.failed()

    def _run(self) -> None:
        while self._reader.busy or not self._closing:
            self._obey()
            self._reader.turn(self._calls.now_ns())

    def _obey(self) -> None:
        """Do what was asked for; wait for it when there is nothing else to do."""
        if not self._reader.busy:
            self._commands.get()(self._calls.now_ns())
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command(self._calls.now_ns())
