"""What the other ranks of a worker say, brought to where it belongs in the leader."""

import logging
from queue import Empty, SimpleQueue

from tandem.facts.errors import EngineFailed
from tandem.facts.kv_export import Endpoint, MoveReport
from tandem.facts.steps import StepResult
from tandem.live.driver import Inbox
from tandem.live.processes.lifecycle import end_within
from tandem.live.ranks.engine import PipelineThread
from tandem.live.ranks.link import RankLost
from tandem.live.ranks.transfers import RankTally
from tandem.messages.node import BlocksExported, MoveFinished
from tandem.messages.ranks import RankReady, ToLeader

logger = logging.getLogger(__name__)

Endpoints = tuple[Endpoint, ...]
# When a rank is lost before all are ready, the process has so long to end by itself.
START_SHUTDOWN_S = 2.0


class RankNews:
    """For a worker of `ranks`. `tally` also counts what the leader's own transfer engine reports;
    `pipeline` gets the tokens, where it is the last stage that draws them."""

    def __init__(self, ranks: int, inbox: Inbox) -> None:
        self.pipeline: PipelineThread | None = None
        self.tally = RankTally(ranks, self._move_ended, self._blocks_published)
        self._followers = ranks - 1
        self._all_ready = False
        self._inbox = inbox
        self._ready: SimpleQueue[tuple[int, Endpoints] | Exception] = SimpleQueue()

    def hear(self, rank: int, message: ToLeader) -> None:
        """From any thread."""
        match message:
            case RankReady(endpoints):
                self._ready.put((rank, endpoints))
            case StepResult():
                assert self.pipeline is not None
                self.pipeline.land(message)
            case MoveFinished(move_id, report):
                self.tally.move_ended(move_id, report)
            case BlocksExported(export_id):
                self.tally.blocks_published(export_id)

    def lost(self, failure: Exception) -> None:
        """The worker cannot go on; from any thread."""
        if not self._all_ready:
            logger.error("the worker cannot start: %s", failure)
            # The leader may just wait for the lost rank where nothing can wake it.
            end_within(START_SHUTDOWN_S, 1)
        self._ready.put(failure)
        self._inbox.fail(EngineFailed(str(failure)))

    def wait_for_all(self, timeout_s: float) -> dict[int, Endpoints]:
        """Until every follower is ready: the ways to their memory. Raises `RankLost`."""
        found: dict[int, Endpoints] = {}
        while len(found) < self._followers:
            try:
                ready = self._ready.get(timeout=timeout_s)
            except Empty as empty:
                raise RankLost(f"not all ranks were ready after {timeout_s:g} s") from empty
            if isinstance(ready, Exception):
                raise RankLost(str(ready)) from ready
            rank, endpoints = ready
            found[rank] = endpoints
        self._all_ready = True
        return found

    def _move_ended(self, move_id: int, report: MoveReport) -> None:
        self._inbox.enqueue_threadsafe(MoveFinished(move_id, report))

    def _blocks_published(self, export_id: int) -> None:
        self._inbox.enqueue_threadsafe(BlocksExported(export_id))
