"""KV transfer of a worker that no KV transfer engine alone can do: of several ranks, each of which
reads its own share (a transfer or a block export is over when it is over on all of them), or of
memory that no connector reaches (`NullTransfer`).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tandem.cluster.node.driver import KvTransferPort
from tandem.facts.kv import Endpoint, KvExport, MoveKv, MoveReport
from tandem.live.ranks.ranks import Ranks
from tandem.messages.node import ConnectPeer, EndMove, ExportBlocks, ForgetPeer, StartMove


class RankTally:
    """Counts ranks that are done. Methods are thread-safe; `transfer_ended` and `blocks_exported`
    are called from the thread of the last one."""

    def __init__(
        self,
        ranks: int,
        transfer_ended: Callable[[int, MoveReport], None],
        blocks_exported: Callable[[int], None],
    ) -> None:
        self._ranks = ranks
        self._transfer_ended = transfer_ended
        self._blocks_exported = blocks_exported
        self._lock = threading.Lock()
        self._reports: dict[int, list[MoveReport]] = {}
        self._publications: dict[int, int] = {}

    def move_ended(self, move_id: int, report: MoveReport) -> None:
        """On one more rank."""
        with self._lock:
            reports = self._reports.setdefault(move_id, [])
            reports.append(report)
            if len(reports) < self._ranks:
                return
            del self._reports[move_id]
        self._transfer_ended(move_id, summed(reports))

    def blocks_published(self, export_id: int) -> None:
        """By one more rank."""
        with self._lock:
            done = self._publications.get(export_id, 0) + 1
            if done < self._ranks:
                self._publications[export_id] = done
                return
            self._publications.pop(export_id, None)
        self._blocks_exported(export_id)


def summed(reports: list[MoveReport]) -> MoveReport:
    """One move of all ranks: they work at the same time, and it has arrived when all have."""
    return MoveReport(
        arrived=all(report.arrived for report in reports),
        connector="+".join(sorted({report.connector for report in reports if report.connector})),
        moved_bytes=sum(report.moved_bytes for report in reports),
        spans=sum(report.spans for report in reports),
        seconds=max(report.seconds for report in reports),
        problem=next((report.problem for report in reports if report.problem), ""),
    )


class RankedTransferEngine:
    """A `KvTransferPort` over all ranks: `own` moves the leader's share."""

    def __init__(self, own: KvTransferPort, ranks: Ranks) -> None:
        self._own = own
        self._ranks = ranks

    def add_source(self, worker: str, incarnation: str, export: KvExport) -> None:
        self._ranks.send_to_ranks(ConnectPeer(worker, incarnation, export))
        self._own.add_source(worker, incarnation, export)

    def forget_source(self, worker: str, incarnation: str) -> None:
        self._ranks.send_to_ranks(ForgetPeer(worker, incarnation))
        self._own.forget_source(worker, incarnation)

    def start_transfer(self, move_id: int, order: MoveKv) -> None:
        self._ranks.send_to_ranks(StartMove(move_id, order))
        self._own.start_transfer(move_id, order)

    def stop_transfer(self, move_id: int) -> None:
        self._ranks.send_to_ranks(EndMove(move_id))
        self._own.stop_transfer(move_id)

    def export_blocks(
        self, export_id: int, blocks: tuple[int, ...], versions: tuple[int, ...]
    ) -> None:
        self._ranks.send_to_ranks(ExportBlocks(export_id, blocks, versions))
        self._own.export_blocks(export_id, blocks, versions)


@dataclass(frozen=True, slots=True)
class NullTransfer:
    """A `live.node.TransferEngine` that has nothing to do. `why` is told of every transfer."""

    why: str
    transfer_ended: Callable[[int, MoveReport], None]
    blocks_exported: Callable[[int], None]

    def endpoints(self) -> tuple[Endpoint, ...]:
        return ()

    def add_source(self, worker: str, incarnation: str, export: KvExport) -> None:
        """Nothing is ever read from it."""

    def forget_source(self, worker: str, incarnation: str) -> None:
        """Nothing was."""

    def start_transfer(self, move_id: int, order: MoveKv) -> None:
        problem = f"{self.why}: nothing of {order.source} can be read"
        self.transfer_ended(move_id, MoveReport(arrived=False, problem=problem))

    def stop_transfer(self, move_id: int) -> None:
        """It has ended already."""

    def export_blocks(
        self, export_id: int, blocks: tuple[int, ...], versions: tuple[int, ...]
    ) -> None:
        """Nobody can read them, and so nobody needs their metadata."""
        assert len(blocks) == len(versions)
        self.blocks_exported(export_id)

    def stop_transfers(self) -> None:
        """Nothing is open."""
