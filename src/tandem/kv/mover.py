"""Reads KV from other workers into own blocks, and publishes own blocks for others to read.

One thread decides, publishes and calls back; a lane for each connector reads. Own blocks are
written by lanes alone, and on behalf of a move by nobody after its end was told. Knows no request
and no gateway.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

from tandem.facts.kv_export import Endpoint, KvExport, MoveKv
from tandem.kv.connector import Connector
from tandem.kv.mover_config import MoverCalls, MoverConfig, MoverMemory
from tandem.kv.mover_desk import Desk
from tandem.kv.mover_lane import Lane, LaneCalls
from tandem.kv.mover_piece import Workplace
from tandem.kv.mover_publisher import Publisher
from tandem.kv.mover_reader import Part, ReadingStatistics
from tandem.kv.threads import SupervisedThread


class KvMover:
    """Methods are thread-safe and return at once, but `close`. Every `start` is answered by one
    `ended` and every `publish` by one `published`, in the mover's thread, until `close`."""

    def __init__(
        self,
        memory: MoverMemory,
        connectors: Sequence[Connector],
        config: MoverConfig,
        calls: MoverCalls,
    ) -> None:
        """`connectors` by preference; they belong to the mover from now on."""
        assert memory.region.device == "cpu"
        self._config = config
        self._calls = calls
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closing = False
        lane_calls = LaneCalls(self._part_ended, calls.failed, calls.now_ns)
        self._lanes = [
            Lane(connector, Workplace(memory.region, memory.transfer, config), config, lane_calls)
            for connector in connectors
        ]
        self._desk = Desk(memory, self._lanes, config, calls.ended)
        self._publisher = Publisher(memory, config)
        self._thread = SupervisedThread("kv mover", self._run, self._failed)
        for lane in self._lanes:
            lane.start()
        self._thread.start()

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The ways to this rank's memory, the preferred first."""
        return tuple(lane.endpoint for lane in self._lanes)

    def statistics(self) -> dict[str, ReadingStatistics]:
        """What came through each connector."""
        return {lane.name: replace(lane.statistics) for lane in self._lanes}

    def connect(self, worker: str, incarnation: str, export: KvExport) -> None:
        """Moves from that start of that worker may be ordered from now on."""
        self._commands.put(lambda: self._desk.connect(worker, incarnation, export))

    def forget(self, worker: str, incarnation: str) -> None:
        """It is gone: moves from it end with a problem."""
        self._commands.put(lambda: self._desk.forget(worker, incarnation))

    def start(self, move_id: int, order: MoveKv) -> None:
        """Begin to read; `move_id` is the caller's, not in use."""
        self._commands.put(lambda: self._desk.start(move_id, order, self._calls.now_ns()))

    def stop(self, move_id: int) -> None:
        """End a move soon, arrived or not."""
        self._commands.put(lambda: self._desk.stop(move_id, "stopped"))

    def publish(
        self, publication_id: int, blocks: Sequence[int], generations: Sequence[int]
    ) -> None:
        """Write the headers of blocks that nobody writes to meanwhile. Those of one mover are
        published in the order they were given."""
        self._commands.put(lambda: self._publisher.add(publication_id, blocks, generations))

    def close(self) -> None:
        """End all threads and connectors, in bounded time; nobody is called afterwards."""
        self._commands.put(self._close)
        self._thread.join(self._config.cancel_s)
        for lane in self._lanes:
            lane.close()
        for lane in self._lanes:
            lane.join(self._config.cancel_s)

    def _close(self) -> None:
        self._closing = True

    def _part_ended(self, lane: str, part: Part) -> None:
        self._commands.put(lambda: self._desk.take(lane, part, self._calls.now_ns()))

    def _failed(self, failure: Exception) -> None:
        """No move ends any more: the process does."""
        del failure
        if not self._closing:
            self._calls.failed()

    def _run(self) -> None:
        while not self._closing:
            try:
                command = self._commands.get(block=not self._publisher.busy)
            except Empty:
                pass  # nobody wants anything: on with what is to be published
            else:
                command()
            if self._publisher.busy and (published := self._publisher.step()) is not None:
                self._calls.published(published)
