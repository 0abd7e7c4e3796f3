"""The worker thread of one connector: a peer that hangs there holds up no other way of reading."""

from collections.abc import Callable
from dataclasses import dataclass

from tandem.facts.kv_export import Endpoint
from tandem.kv.connectors.contract import Connector
from tandem.kv.threads import Step, WorkerThread
from tandem.kv.transfer.chunk import ChunkBuffers
from tandem.kv.transfer.config import TransferConfig
from tandem.kv.transfer.reader import ReadStatistics, ShardRead, ShardReader


@dataclass(frozen=True, slots=True)
class ConnectorWorkerCalls:
    """Called from the worker thread: the read of a shard is over; the thread broke; what time it
    is."""

    read_ended: Callable[[str, ShardRead], None]
    failed: Callable[[], None]
    now_ns: Callable[[], int]


class ConnectorWorker:
    """Methods return at once, from any thread; `join_worker` excepted. After `stop_reads`
    everything under way ends, then the thread."""

    def __init__(
        self,
        connector: Connector,
        buffers: ChunkBuffers,
        config: TransferConfig,
        calls: ConnectorWorkerCalls,
    ) -> None:
        self.name = connector.name
        self._reader = ShardReader(
            connector, buffers, config, lambda read: calls.read_ended(self.name, read)
        )
        self.endpoint = Endpoint(connector.name, connector.describe_endpoint())
        self._connector = connector
        self._calls = calls
        self._stopping = False
        # Whether the step that goes on reading is in the queue.
        self._reading = False
        self._thread = WorkerThread[Step](
            f"kv {self.name}", lambda step: step(), failed=lambda *_: self._failed()
        )

    @property
    def statistics(self) -> ReadStatistics:
        return self._reader.statistics

    def start_worker(self) -> None:
        self._thread.start_worker()

    def read_shard(self, read: ShardRead, description: bytes) -> None:
        def step() -> bool:
            self._reader.begin_shard(read, description, self._calls.now_ns())
            if not self._reading:
                self._reading = True
                self._thread.post(self._go_on)
            return True

        self._thread.post(step, urgent=True)

    def stop_transfer(self, move_id: int, problem: str) -> None:
        """Reads for it end soon."""

        def step() -> bool:
            self._reader.stop_reads(move_id, problem, self._calls.now_ns())
            return True

        self._thread.post(step, urgent=True)

    def forget_peer(self, peer: str, problem: str) -> None:
        """Reads from it end soon, and its connection."""

        def step() -> bool:
            self._reader.forget_peer(peer, problem, self._calls.now_ns())
            return True

        self._thread.post(step, urgent=True)

    def stop_reads(self) -> None:
        """All reads end soon, then the thread."""

        def step() -> bool:
            self._stopping = True
            self._reader.stop_reads(None, "the worker is leaving", self._calls.now_ns())
            self._thread.stop_worker()
            return True

        self._thread.post(step, urgent=True)

    def join_worker(self, timeout_s: float) -> None:
        """Wait for the end of the thread, close the connector, and with its help wait again."""
        self._thread.join_worker(timeout_s)
        self._connector.close_connector()
        self._thread.join_worker(timeout_s)

    def _go_on(self) -> bool:
        """One turn of the reader; over when nothing is left to read."""
        self._reader.turn(self._calls.now_ns())
        self._reading = self._reader.busy
        return not self._reading

    def _failed(self) -> None:
        """No read ends any more: the process does."""
        if not self._stopping:
            self._calls.failed()
