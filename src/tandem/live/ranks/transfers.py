"""KV transfer of a worker that no KV transfer engine alone can do: of several ranks, each of which
reads its own share (a transfer or a block export is over when it is over on all of them), or of
memory that no connector reaches (`NullTransfer`).
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem.cluster.node.driver import KvTransferPort
from tandem.facts.kv import Endpoint, KvExport, MoveKv, MoveReport
from tandem.kv.transfer.config import TransferEvent
from tandem.live.ranks.ranks import Ranks
from tandem.messages.node import (
    BlocksExported,
    ConnectPeer,
    EndMove,
    ExportBlocks,
    ForgetPeer,
    MoveFinished,
    StartMove,
)


class RankTally:
    """Counts the ranks on which an order is over. `rank_ended` is thread-safe; `answered` is called
    in the thread of the last one."""

    def __init__(self, ranks: int, answered: Callable[[TransferEvent], None]) -> None:
        self._ranks = ranks
        self._answered = answered
        self._lock = threading.Lock()
        self._ended: dict[tuple[type[TransferEvent], int], list[TransferEvent]] = {}

    def rank_ended(self, event: TransferEvent) -> None:
        """It is over on one more rank."""
        number = event.move_id if isinstance(event, MoveFinished) else event.export_id
        with self._lock:
            ended = self._ended.setdefault((type(event), number), [])
            ended.append(event)
            if len(ended) < self._ranks:
                return
            del self._ended[type(event), number]
        moves = [each.report for each in ended if isinstance(each, MoveFinished)]
        self._answered(MoveFinished(number, _summed(moves)) if moves else event)


def _summed(reports: Sequence[MoveReport]) -> MoveReport:
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
    """A transfer engine that can move nothing: every transfer ends at once, with `why`."""

    why: str
    answered: Callable[[TransferEvent], None]

    def endpoints(self) -> tuple[Endpoint, ...]:
        return ()

    def add_source(self, worker: str, incarnation: str, export: KvExport) -> None:
        """Nothing is ever read from it."""

    def forget_source(self, worker: str, incarnation: str) -> None:
        """Nothing was."""

    def start_transfer(self, move_id: int, order: MoveKv) -> None:
        problem = f"{self.why}: nothing of {order.source} can be read"
        self.answered(MoveFinished(move_id, MoveReport(arrived=False, problem=problem)))

    def stop_transfer(self, move_id: int) -> None:
        """It has ended already."""

    def export_blocks(
        self, export_id: int, blocks: tuple[int, ...], versions: tuple[int, ...]
    ) -> None:
        """Nobody can read them, and so nobody needs their metadata."""
        assert len(blocks) == len(versions)
        self.answered(BlocksExported(export_id))

    def stop_transfers(self) -> None:
        """Nothing is open."""
