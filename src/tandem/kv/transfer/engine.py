"""The KV transfer engine of a worker: reads KV blocks of other workers into own blocks, and exports
own blocks for others to read.

One thread coordinates, exports and calls back; a worker thread for each connector reads. Own blocks
are written by those threads alone, and on behalf of a transfer by nobody after its end was
reported. Knows no request and no gateway.
"""

from collections.abc import Callable, Sequence

from tandem.facts.kv import Endpoint, KvExport, MoveKv
from tandem.kv.connectors.contract import Connector
from tandem.kv.threads import StepThread
from tandem.kv.transfer.chunk import ChunkBuffers
from tandem.kv.transfer.config import TransferCalls, TransferConfig, TransferMemory
from tandem.kv.transfer.coordinator import ConnectorWorker, Coordinator
from tandem.kv.transfer.export import BlockExport
from tandem.kv.transfer.reader import ShardRead
from tandem.messages.node import BlocksExported


class KvTransferEngine:
    """Methods are thread-safe and return at once, but `stop_transfers`. Every `start_transfer` is
    answered by one `MoveFinished` and every `export_blocks` by one `BlocksExported`, in the
    engine's coordinator thread, until `stop_transfers`."""

    def __init__(
        self,
        memory: TransferMemory,
        connectors: Sequence[Connector],
        config: TransferConfig,
        calls: TransferCalls,
    ) -> None:
        """`connectors` by preference; they belong to the engine from now on."""
        assert memory.region.device == "cpu"
        self._config = config
        self._calls = calls
        self._workers = [
            ConnectorWorker(
                connector,
                ChunkBuffers(memory.region, memory.transfer, config),
                config,
                calls,
                self._read_ended,
            )
            for connector in connectors
        ]
        self._coordinator = Coordinator(memory, self._workers, config, calls.answered)
        self._export = BlockExport(memory, config)
        self._thread = StepThread("kv transfers", calls.failed)
        for worker in self._workers:
            worker.start_worker()
        self._thread.start_worker()

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The ways to this rank's memory, the preferred first."""
        return tuple(worker.endpoint for worker in self._workers)

    def add_source(self, worker: str, incarnation: str, export: KvExport) -> None:
        """Transfers from that start of that worker may be ordered from now on."""
        self._call(lambda: self._coordinator.add_source(worker, incarnation, export))

    def forget_source(self, worker: str, incarnation: str) -> None:
        """It is gone: transfers from it end with a problem."""
        self._call(lambda: self._coordinator.forget_source(worker, incarnation))

    def start_transfer(self, move_id: int, order: MoveKv) -> None:
        """Begin to read; `move_id` is the caller's, not in use."""
        calls = self._calls
        self._call(lambda: self._coordinator.start_transfer(move_id, order, calls.now_ns()))

    def stop_transfer(self, move_id: int) -> None:
        """End a transfer soon, arrived or not."""
        self._call(lambda: self._coordinator.stop_transfer(move_id, "stopped"))

    def export_blocks(self, export_id: int, blocks: Sequence[int], versions: Sequence[int]) -> None:
        """Write the metadata of blocks that nobody writes to meanwhile. Blocks are exported in the
        order in which they were given; what transfers need goes before them."""
        assert len(blocks) == len(versions)
        exported = 0

        def step() -> bool:
            nonlocal exported
            end = exported + self._export.blocks_a_step
            self._export.write_metadata(blocks[exported:end], versions[exported:end])
            exported = end
            if end < len(blocks):
                return False
            self._calls.answered(BlocksExported(export_id))
            return True

        self._thread.post(step)

    def stop_transfers(self) -> None:
        """End all threads and connectors, in bounded time; nobody is called afterwards."""
        self._thread.drop_worker()
        self._thread.join_worker(self._config.cancel_s)
        for worker in self._workers:
            worker.stop_reads()
        for worker in self._workers:
            worker.join_worker(self._config.cancel_s)

    def _call(self, action: Callable[[], None]) -> None:
        self._thread.call(action, urgent=True)

    def _read_ended(self, connector: str, read: ShardRead) -> None:
        calls = self._calls
        self._call(lambda: self._coordinator.shard_read_ended(connector, read, calls.now_ns()))
