"""The KV mover of a worker of several ranks: each rank moves its own share, and a move or a
publication is over when it is over on all of them.
"""

import threading
from collections.abc import Callable

from tandem.facts.kv_export import KvExport, MoveKv, MoveReport
from tandem.live.node import Mover
from tandem.live.ranks.ranks import Ranks
from tandem.messages.node import ConnectPeer, EndMove, ForgetPeer, PublishBlocks, StartMove


class RankTally:
    """Counts ranks that are done. Methods are thread-safe; `ended` and `published` are called from
    the thread of the last one."""

    def __init__(
        self,
        ranks: int,
        ended: Callable[[int, MoveReport], None],
        published: Callable[[int], None],
    ) -> None:
        self._ranks = ranks
        self._ended = ended
        self._published = published
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
        self._ended(move_id, summed(reports))

    def blocks_published(self, publication_id: int) -> None:
        """By one more rank."""
        with self._lock:
            done = self._publications.get(publication_id, 0) + 1
            if done < self._ranks:
                self._publications[publication_id] = done
                return
            self._publications.pop(publication_id, None)
        self._published(publication_id)


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


class RankedMover:
    """A `Mover` over all ranks: `own` moves the leader's share."""

    def __init__(self, own: Mover, ranks: Ranks) -> None:
        self._own = own
        self._ranks = ranks

    def connect(self, worker: str, incarnation: str, export: KvExport) -> None:
        self._ranks.tell(ConnectPeer(worker, incarnation, export))
        self._own.connect(worker, incarnation, export)

    def forget(self, worker: str, incarnation: str) -> None:
        self._ranks.tell(ForgetPeer(worker, incarnation))
        self._own.forget(worker, incarnation)

    def start(self, move_id: int, order: MoveKv) -> None:
        self._ranks.tell(StartMove(move_id, order))
        self._own.start(move_id, order)

    def stop(self, move_id: int) -> None:
        self._ranks.tell(EndMove(move_id))
        self._own.stop(move_id)

    def publish(
        self, publication_id: int, blocks: tuple[int, ...], generations: tuple[int, ...]
    ) -> None:
        self._ranks.tell(PublishBlocks(publication_id, blocks, generations))
        self._own.publish(publication_id, blocks, generations)
