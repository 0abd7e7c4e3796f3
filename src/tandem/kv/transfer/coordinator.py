"""The coordinator of KV transfers: which workers may be read from, and every transfer under way,
cut into reads of shards, given to the worker threads of connectors, and gathered again.

The coordinator is single-threaded, like the machines; worker threads answer through the thread that
owns it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tandem.facts.kv import Endpoint, KvExport, MoveKv, MoveReport
from tandem.kv.connectors.contract import Connector
from tandem.kv.layout import copies_layout, pool_layout
from tandem.kv.threads import NS_PER_S, StepThread
from tandem.kv.transfer.chunk import ChunkBuffers
from tandem.kv.transfer.config import TransferCalls, TransferConfig, TransferMemory
from tandem.kv.transfer.export import BlockMetadata
from tandem.kv.transfer.read_plan import ChunkRange, ChunkTooSmall, ReadPlan
from tandem.kv.transfer.reader import ShardRead, ShardReader
from tandem.kv.transfer.sources import objection, order_objection, shared_runs
from tandem.messages.node import MoveFinished


@dataclass(slots=True)
class ShardPlan:
    """What is read from one rank of a source: `chunk_ranges`, of `read_plan` or of encoded copies.
    `endpoints` are those not tried yet, the preferred first; `refusals` are why the others would
    not do."""

    read_plan: ReadPlan
    chunk_ranges: list[tuple[ReadPlan, ChunkRange]]
    endpoints: list[Endpoint]
    refusals: list[str] = field(default_factory=list)


@dataclass(slots=True)
class TransferState:
    """One KV transfer over all the ranks it reads from. `shards` are the reads under way, by the
    name their source rank has for connectors; `used` are the connectors that brought something."""

    order: MoveKv
    begun_ns: int
    shards: dict[str, ShardPlan] = field(default_factory=dict)
    problem: str = ""
    used: list[str] = field(default_factory=list)
    moved_bytes: int = 0
    spans: int = 0

    @property
    def source(self) -> tuple[str, str]:
        """Worker and incarnation."""
        return self.order.source, self.order.incarnation

    def report(self, now_ns: int) -> MoveReport:
        """How it went, once nothing is under way any more."""
        return MoveReport(
            arrived=not self.problem,
            connector="+".join(dict.fromkeys(self.used)),
            moved_bytes=self.moved_bytes,
            spans=self.spans,
            seconds=(now_ns - self.begun_ns) / NS_PER_S,
            problem=self.problem,
        )


class ConnectorWorker:
    """The worker thread of one connector: a peer that hangs there holds up no other way of reading.
    Methods return at once, from any thread; `join_worker` excepted. After `stop_reads` everything
    under way ends, then the thread. `read_ended` is called in that thread."""

    def __init__(
        self,
        connector: Connector,
        buffers: ChunkBuffers,
        config: TransferConfig,
        calls: TransferCalls,
        read_ended: Callable[[str, ShardRead], None],
    ) -> None:
        self.name = connector.name
        self._reader = ShardReader(
            connector, buffers, config, lambda read: read_ended(self.name, read)
        )
        self.endpoint = Endpoint(connector.name, connector.describe_endpoint())
        self._connector = connector
        self._calls = calls
        self._stopping = False
        # Whether the step that goes on reading is in the queue.
        self._reading = False
        self._thread = StepThread(f"kv {self.name}", self._failed)

    def start_worker(self) -> None:
        self._thread.start_worker()

    def read_shard(self, read: ShardRead, description: bytes) -> None:
        def begin() -> None:
            self._reader.begin_shard(read, description, self._calls.now_ns())
            if not self._reading:
                self._reading = True
                self._thread.post(self._go_on)

        self._thread.call(begin, urgent=True)

    def stop_transfer(self, move_id: int, problem: str) -> None:
        """Reads for it end soon."""
        reader = self._reader
        self._thread.call(
            lambda: reader.stop_reads(move_id, problem, self._calls.now_ns()), urgent=True
        )

    def forget_peer(self, peer: str, problem: str) -> None:
        """Reads from it end soon, and its connection."""
        reader = self._reader
        self._thread.call(
            lambda: reader.forget_peer(peer, problem, self._calls.now_ns()), urgent=True
        )

    def stop_reads(self) -> None:
        """All reads end soon, then the thread."""

        def stop() -> None:
            self._stopping = True
            self._reader.stop_reads(None, "the worker is leaving", self._calls.now_ns())
            self._thread.stop_worker()

        self._thread.call(stop, urgent=True)

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


class Coordinator:
    """`answered` gets the end of every transfer that was started, once."""

    def __init__(
        self,
        memory: TransferMemory,
        workers: Sequence[ConnectorWorker],
        config: TransferConfig,
        answered: Callable[[MoveFinished], None],
    ) -> None:
        self._memory = memory
        self._metadata = BlockMetadata(memory.view, memory.layout, memory.transfer)
        self._workers = {worker.name: worker for worker in workers}
        self._config = config
        self._answered = answered
        self._sources: dict[tuple[str, str], KvExport] = {}
        self._objections: dict[tuple[str, str], str | None] = {}
        self._transfers: dict[int, TransferState] = {}

    def add_source(self, worker: str, incarnation: str, export: KvExport) -> None:
        """That start of that worker may be read from."""
        source = (worker, incarnation)
        self._sources[source] = export
        self._objections[source] = objection(self._memory.export, export)

    def forget_source(self, worker: str, incarnation: str) -> None:
        """It is gone: transfers from it end with a problem."""
        source, problem = (worker, incarnation), f"{worker} is gone"
        export = self._sources.pop(source, None)
        if export is None:
            return
        for transfer in self._transfers.values():
            if transfer.source == source:
                transfer.problem = transfer.problem or problem
        for reading in self._workers.values():
            for shard in export.shards:
                reading.forget_peer(_peer(source, shard.rank), problem)

    def start_transfer(self, move_id: int, order: MoveKv, now_ns: int) -> None:
        """Begin to read what the order names, or end it at once where nothing can be read."""
        assert move_id not in self._transfers
        transfer = TransferState(order, now_ns)
        transfer.problem = self._objection(order) or self._plan(transfer)
        if transfer.problem:
            self._answered(MoveFinished(move_id, transfer.report(now_ns)))
            return
        self._transfers[move_id] = transfer
        # Others may still have orders for what these blocks held before.
        self._metadata.invalidate_blocks(order.target_blocks)
        for peer in tuple(transfer.shards):
            self._read_shard(move_id, peer, now_ns)

    def stop_transfer(self, move_id: int, problem: str) -> None:
        """It ends soon; unknown ones have ended already."""
        transfer = self._transfers.get(move_id)
        if transfer and not transfer.problem:
            transfer.problem = problem
            for worker in self._workers.values():
                worker.stop_transfer(move_id, problem)

    def shard_read_ended(self, connector: str, read: ShardRead, now_ns: int) -> None:
        """The worker thread of that connector gives a read back: the next connector tries one that
        found no way."""
        transfer = self._transfers[read.move_id]
        if read.unreachable and not transfer.problem:
            transfer.shards[read.peer].refusals.append(f"{connector}: {read.problem}")
            self._read_shard(read.move_id, read.peer, now_ns)
            return
        del transfer.shards[read.peer]
        transfer.moved_bytes += read.moved_bytes
        transfer.spans += read.spans
        transfer.used += [] if read.unreachable else [connector]
        if read.problem:
            self.stop_transfer(read.move_id, read.problem)
        self._end_if_over(read.move_id, now_ns)

    def _objection(self, order: MoveKv) -> str:
        source = (order.source, order.incarnation)
        export = self._sources.get(source)
        if export is None:
            return f"nothing is known of {order.source} of incarnation {order.incarnation}"
        if problem := self._objections[source]:
            return f"cannot read from {order.source}: {problem}"
        if len(self._transfers) >= self._config.max_transfers:
            return f"{len(self._transfers)} moves are under way already"
        return order_objection(order, self._memory.export, export) or ""

    def _plan(self, transfer: TransferState) -> str:
        """A read for each rank that has some of what is needed. Gives what stands against it."""
        export = self._sources[transfer.source]
        for runs in shared_runs(self._memory.shard, export.shards):
            theirs = pool_layout(export, runs.shard)
            blocks = read_from = ReadPlan.of_blocks(
                transfer.order, theirs, self._memory.layout, runs
            )
            copies = copies_layout(export, runs.shard)
            if copies and export.encoded and export.encoded.dtype == self._config.wire_dtype:
                read_from = blocks.of_copies(*copies)
            try:
                # Whatever comes encoded may have to be read as it is stored after all.
                blocks.chunk_ranges(self._config.chunk_bytes)
                ranges = read_from.chunk_ranges(self._config.chunk_bytes)
            except ChunkTooSmall as error:
                return str(error)
            # In one's own order of preference.
            endpoints = [
                endpoint
                for name in self._workers
                for endpoint in runs.shard.endpoints
                if endpoint.connector == name
            ]
            plan = ShardPlan(blocks, [(read_from, one) for one in ranges], endpoints)
            transfer.shards[_peer(transfer.source, runs.shard.rank)] = plan
        return ""

    def _read_shard(self, move_id: int, peer: str, now_ns: int) -> None:
        """Give a read to the next connector that may reach its rank."""
        transfer = self._transfers[move_id]
        plan = transfer.shards[peer]
        if not plan.endpoints:
            del transfer.shards[peer]
            why = "; ".join(plan.refusals) or "no connector in common"
            self.stop_transfer(move_id, f"no way to {peer}: {why}")
            self._end_if_over(move_id, now_ns)
            return
        endpoint = plan.endpoints.pop(0)
        deadline_ns = transfer.begun_ns + round(self._config.timeout_s * NS_PER_S)
        read = ShardRead(move_id, peer, plan.read_plan, deque(plan.chunk_ranges), deadline_ns)
        self._workers[endpoint.connector].read_shard(read, endpoint.description)

    def _end_if_over(self, move_id: int, now_ns: int) -> None:
        transfer = self._transfers[move_id]
        if not transfer.shards:
            del self._transfers[move_id]
            self._answered(MoveFinished(move_id, transfer.report(now_ns)))


def _peer(source: tuple[str, str], rank: int) -> str:
    """What connectors call that rank."""
    return "/".join((*source, str(rank)))
