"""A source worker and the KV transfer engines of a target worker's ranks, in one process; and the
connector between them, with everything that may go wrong with one, on demand."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from queue import SimpleQueue
from threading import Event

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.facts.kv import Endpoint, KvExport, MoveKv, MoveReport
from tandem.kernels.transfer import Transfer, choose_transfer
from tandem.kv.connectors.contract import Completion, ConnectorError, Spans, problem_of
from tandem.kv.region import Region
from tandem.kv.transfer.config import TransferCalls, TransferConfig, TransferEvent, TransferMemory
from tandem.kv.transfer.engine import KvTransferEngine
from tandem.messages.node import BlocksExported, MoveFinished
from tests.kv.split_workers import Split, SplitWorker, model_kv, order_for


@dataclass
class LoopNet:
    """What all connectors of a test can reach, by description."""

    regions: dict[bytes, Region] = field(default_factory=dict)
    numbers: count = field(default_factory=count)

    def export(self, region: Region) -> bytes:
        description = b"loop %d" % next(self.numbers)
        self.regions[description] = region
        return description


class LoopConnector:
    """Copies within `poll_completions`, one read a call. `released` cleared: nothing moves, like a
    peer that hangs. `before_copy` gets the number of the read and its spans. `reading`: a read
    was asked for."""

    def __init__(self, net: LoopNet, name: str = "loop") -> None:
        self.name = name
        self.net = net
        self.own: list[Region] = []
        self.peers: dict[str, Region] = {}
        self.connected: list[str] = []
        self.refusal = ""
        self.reading = Event()
        self.released = Event()
        self.released.set()
        self.before_copy: Callable[[int, Spans], None] | None = None
        self.problems: dict[int, str] = {}
        self.ends_cancelled = True
        self._open: dict[int, tuple[str, Spans, int]] = {}
        self._over: list[Completion] = []
        self._handles = count()
        self._description = b""

    def register_region(self, region: Region, *, exported: bool) -> int:
        self.own.append(region)
        if exported:
            self._description = self.net.export(region)
        return len(self.own) - 1

    def describe_endpoint(self) -> bytes:
        return self._description

    def connect_peer(self, peer: str, description: bytes) -> None:
        self.connected.append(peer)
        if self.refusal:
            raise ConnectorError(self.refusal)
        self.peers[peer] = self.net.regions[description]

    def disconnect_peer(self, peer: str) -> None:
        self.peers.pop(peer, None)
        for handle in [handle for handle, (whose, *_) in self._open.items() if whose == peer]:
            self._finish(handle, "disconnected")

    def begin_read(self, peer: str, spans: Spans, region_id: int) -> int:
        if peer not in self.peers:
            raise ConnectorError(f"{peer} is not connected")
        handle = next(self._handles)
        self._open[handle] = (peer, spans, region_id)
        self.reading.set()
        return handle

    def cancel_handle(self, handle: int) -> None:
        if self.ends_cancelled and handle in self._open:
            self._finish(handle, "cancelled")

    def poll_completions(self, timeout_s: float) -> list[Completion]:
        if not self._over and self.released.wait(timeout_s) and self._open:
            self._copy(min(self._open))
        over, self._over = self._over, []
        return over

    def close_connector(self) -> None:
        self.released.set()

    def _copy(self, handle: int) -> None:
        peer, spans, region_id = self._open[handle]
        source, target = self.peers[peer], self.own[region_id]
        if self.before_copy:
            self.before_copy(handle, spans)
        problem = self.problems.get(handle) or problem_of(spans, source.bytes, target.bytes)
        if not problem:
            pieces = (spans.remote.tolist(), spans.local.tolist(), spans.lengths.tolist())
            for remote, local, length in zip(*pieces, strict=True):
                ctypes.memmove(target.address + local, source.address + remote, length)
        self._finish(handle, problem)

    def _finish(self, handle: int, problem: str) -> None:
        del self._open[handle]
        self._over.append(Completion(handle, problem))


class MappedLoopConnector(LoopConnector):
    """Readers copy by themselves."""

    def memory_of(self, peer: str) -> NDArray[np.uint8]:
        if peer not in self.peers:
            raise ConnectorError(f"{peer} is not connected")
        region = self.peers[peer]
        array = (ctypes.c_uint8 * region.bytes).from_address(region.address)
        return np.ctypeslib.as_array(array)


TRANSFER = choose_transfer()
TOKENS = 24
SOURCE = ("source", "1")
PATIENCE_S = 20


@dataclass
class Clock:
    """Time stands still unless it is set."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns


class Source:
    """A worker that others read from: its memory, and the ways to it."""

    def __init__(self, split: Split, net: LoopNet, names: tuple[str, ...] = ("loop",)) -> None:
        self.worker = SplitWorker(split, 1)
        self.values = model_kv(TOKENS, split, seed=3)
        self.descriptions = [net.export(region) for region in self.worker.regions]
        self.names = names

    @property
    def export(self) -> KvExport:
        shards = [
            replace(shard, endpoints=tuple(Endpoint(name, way) for name in self.names))
            for shard, way in zip(self.worker.export.shards, self.descriptions, strict=True)
        ]
        return replace(self.worker.export, shards=tuple(shards))

    def announce(self, order: MoveKv) -> None:
        """Have in memory, and export, what the order is to read."""
        size = self.worker.split.block_size
        begin = order.first_token // size * size
        self.worker.write(self.values[begin:], list(order.source_blocks))
        self.worker.export_blocks(TRANSFER, list(order.source_blocks), list(order.source_versions))


class TransferRank:
    """The KV transfer engine of one rank, and what it reported. Close it."""

    def __init__(
        self,
        worker: SplitWorker,
        rank: int,
        connectors: list[LoopConnector],
        config: TransferConfig = TransferConfig(),  # noqa: B008 - frozen
        *,
        transfer: Transfer = TRANSFER,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        self.worker = worker
        self.clock = Clock()
        self.ended: SimpleQueue[MoveFinished] = SimpleQueue()
        self.exported: SimpleQueue[int] = SimpleQueue()
        self.failed = Event()
        memory = TransferMemory(worker.regions[rank], worker.export, rank, transfer)
        calls = TransferCalls(self._answered, self.failed.set, now_ns or self.clock)
        self.transfers = KvTransferEngine(memory, connectors, config, calls)

    def _answered(self, event: TransferEvent) -> None:
        match event:
            case MoveFinished():
                self.ended.put(event)
            case BlocksExported(export_id):
                self.exported.put(export_id)

    def move(self, move_id: int, order: MoveKv) -> MoveReport:
        self.transfers.start_transfer(move_id, order)
        return self.report_of(move_id)

    def report_of(self, move_id: int) -> MoveReport:
        ended = self.ended.get(timeout=PATIENCE_S)
        assert ended.move_id == move_id
        return ended.report

    def close(self) -> None:
        self.transfers.stop_transfers()
        assert not self.failed.is_set()


class Pair:
    """A source and the target's ranks, connected. Use as a context."""

    def __init__(
        self,
        source: Split,
        target: Split,
        config: TransferConfig = TransferConfig(),  # noqa: B008
        *,
        kind: type[LoopConnector] = LoopConnector,
        transfer: Transfer = TRANSFER,
    ) -> None:
        self.net = LoopNet()
        self.source = Source(source, self.net)
        self.target = SplitWorker(target, 2)
        self.connectors = [kind(self.net) for _ in self.target.export.shards]
        self.ranks = [
            TransferRank(self.target, rank, [connector], config, transfer=transfer)
            for rank, connector in enumerate(self.connectors)
        ]
        for rank in self.ranks:
            rank.transfers.add_source(*SOURCE, self.source.export)

    @property
    def transfers(self) -> TransferRank:
        return self.ranks[0]

    @property
    def connector(self) -> LoopConnector:
        return self.connectors[0]

    def order(self, first_token: int, end_token: int) -> MoveKv:
        return order_for(self.source.worker.split, self.target.split, first_token, end_token)

    def announced(self, first_token: int, end_token: int) -> MoveKv:
        """An order for what the source has exported."""
        order = self.order(first_token, end_token)
        self.source.announce(order)
        return order

    def expected(self, order: MoveKv) -> list[torch.Tensor]:
        return self.target.expected(order, self.source.values)

    def move_and_compare(self, order: MoveKv, values: torch.Tensor | None = None) -> None:
        """All ranks read what was ordered, and have these values then; the source's where there are
        none."""
        expected = self.target.expected(order, self.source.values if values is None else values)
        for move_id, rank in enumerate(self.ranks):
            report = rank.move(move_id, order)
            assert (report.arrived, report.problem) == (True, "")
            assert report.moved_bytes and report.spans and report.connector == "loop"
        for pool, right in zip(self.target.pools, expected, strict=True):
            assert torch.equal(pool, right)

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.close()
