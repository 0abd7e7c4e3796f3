"""A source worker and the KV transfer engines of a target worker's ranks, in one process."""

from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Event

import torch

from tandem.facts.kv_export import Endpoint, KvExport, MoveKv, MoveReport
from tandem.kernels.transfer.choose import choose_transfer
from tandem.kernels.transfer.contract import Transfer
from tandem.kv.transfer.config import TransferCalls, TransferConfig, TransferMemory
from tandem.kv.transfer.engine import KvTransferEngine
from tests.kv.loop_connector import LoopConnector, LoopNet
from tests.kv.split_workers import Split, SplitWorker, model_kv, order_for

TRANSFER = choose_transfer()
TOKENS = 24
SOURCE = ("source", "1")
PATIENCE_S = 20


@dataclass
class Clock:
    """Time stands still unless told."""

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
    """The KV transfer engine of one rank, and what it told. Close it."""

    def __init__(
        self,
        worker: SplitWorker,
        rank: int,
        connectors: list[LoopConnector],
        config: TransferConfig = TransferConfig(),  # noqa: B008 - frozen
        *,
        transfer: Transfer = TRANSFER,
    ) -> None:
        self.clock = Clock()
        self.ended: SimpleQueue[tuple[int, MoveReport]] = SimpleQueue()
        self.published: SimpleQueue[int] = SimpleQueue()
        self.failed = Event()
        memory = TransferMemory(worker.regions[rank], worker.export, rank, transfer)
        calls = TransferCalls(
            lambda move_id, report: self.ended.put((move_id, report)),
            self.published.put,
            self.failed.set,
            self.clock,
        )
        self.transfers = KvTransferEngine(memory, connectors, config, calls)

    def move(self, move_id: int, order: MoveKv) -> MoveReport:
        self.transfers.start_transfer(move_id, order)
        return self.report_of(move_id)

    def report_of(self, move_id: int) -> MoveReport:
        ended, report = self.ended.get(timeout=PATIENCE_S)
        assert ended == move_id
        return report

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

    def expected(self, order: MoveKv) -> list[torch.Tensor]:
        return self.target.expected(order, self.source.values)

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.close()
