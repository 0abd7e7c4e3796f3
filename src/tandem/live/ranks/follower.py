"""A rank of a worker that does not lead: it computes and moves what its leader says.

It ends when the link to the leader does.
"""

import logging
from dataclasses import dataclass

from tandem.cluster.node.driver import KvTransferPort
from tandem.facts.kv_export import MoveReport
from tandem.facts.steps import StepPlan
from tandem.live.engine_thread import WorkQueueThread
from tandem.live.ranks.engine import StageEngine
from tandem.live.ranks.link import RankLink, RankLost
from tandem.messages.node import (
    BlocksExported,
    ConnectPeer,
    EndMove,
    ExportBlocks,
    ForgetPeer,
    MoveFinished,
    StartMove,
)
from tandem.messages.ranks import (
    Ping,
    Pong,
    RankBegins,
    RankFailed,
    ToFollower,
    TokensLanded,
    ToLeader,
)

logger = logging.getLogger(__name__)

FollowerLink = RankLink[ToLeader, ToFollower]


@dataclass(frozen=True, slots=True)
class MovesToLeader:
    """What the own KV transfer engine reports, sent to the leader; from its coordinator thread."""

    link: FollowerLink

    def move_ended(self, move_id: int, report: MoveReport) -> None:
        self.link.send(MoveFinished(move_id, report))

    def blocks_published(self, export_id: int) -> None:
        self.link.send(BlocksExported(export_id))

    def failed(self) -> None:
        self.link.send(RankFailed("the KV transfers failed"))


class Follower:
    """`draws`: this rank tells the leader what the steps drew."""

    def __init__(
        self, link: FollowerLink, engine: StageEngine, transfers: KvTransferPort, *, draws: bool
    ) -> None:
        self._link = link
        self._engine = engine
        self._transfers = transfers
        self._draws = draws
        self._thread = WorkQueueThread[StepPlan | TokensLanded](self._compute, self._engine_failed)

    def run(self) -> str:
        """Until the link ends; why it did."""
        self._thread.start()
        try:
            while True:
                self._take(self._link.receive())
        except RankLost as lost:
            return str(lost)
        finally:
            self._thread.finish()

    def _take(self, message: ToFollower) -> None:
        match message:
            case StepPlan() | TokensLanded():
                self._thread.submit(message)
            case StartMove(move_id, order):
                self._transfers.start_transfer(move_id, order)
            case EndMove(move_id):
                self._transfers.stop_transfer(move_id)
            case ExportBlocks(export_id, blocks, versions):
                self._transfers.export_blocks(export_id, blocks, versions)
            case ConnectPeer(worker, incarnation, export):
                self._transfers.add_source(worker, incarnation, export)
            case ForgetPeer(worker, incarnation):
                self._transfers.forget_source(worker, incarnation)
            case Ping():
                self._link.send(Pong())
            case RankBegins():
                raise RankLost("the leader began twice")

    def _compute(self) -> None:
        self._engine.adopt_thread()
        for work in self._thread.work():
            if isinstance(work, TokensLanded):
                self._engine.take_landed(work.step_id, work.tokens)
                continue
            step = self._engine.launch(work)
            if self._draws:
                self._link.send(step.result())

    def _engine_failed(self, failure: Exception) -> None:
        try:
            self._link.send(RankFailed(f"{type(failure).__name__}: {failure}"))
        except RankLost as lost:
            logger.warning("the leader does not hear of it: %s", lost)
        self._link.close()
