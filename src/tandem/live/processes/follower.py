"""The process of one rank of a worker that does not lead: it computes and moves what its leader
orders, over the socket between them, from the set-up (`FollowerSetup`) on. It ends when that link
does."""

import gc

if __name__ == "__main__":
    # torch makes a million objects that live as long as the process: a fifth of the time that its
    # import takes would go into looking for garbage among them.
    gc.disable()

import logging
import os
import sys

import msgspec

from tandem.cluster.node.driver import KvTransferPort, perform_transfer
from tandem.config.processes import WorkerSetup
from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.facts.steps import StepPlan
from tandem.kernels.collectives.distributed import connect, disconnect
from tandem.kv.transfer.config import TransferCalls
from tandem.live.clock import now_ns
from tandem.live.engine_thread import WorkQueueThread
from tandem.live.processes.lifecycle import (
    StartUp,
    end_with_parent,
    end_within,
    log_of_process,
    run_to_the_end,
)
from tandem.live.processes.worker_rank import load_rank, plan_worker, world_of
from tandem.live.ranks.engine import StageEngine
from tandem.live.ranks.ranks import RankLink, RankLost, link_to_leader
from tandem.messages.ranks import (
    Ping,
    Pong,
    RankBegins,
    RankFailed,
    RankReady,
    ToFollower,
    TokensLanded,
    ToLeader,
)

# Under its own name, which is another one while this is what was started.
logger = logging.getLogger("tandem.live.processes.follower")

SHUTDOWN_S = 5.0
# The number of the process's end of the socket follows.
FOLLOWER_COMMAND = (sys.executable, "-m", "tandem.live.processes.follower")
# A rank that takes no message for so long is lost.
PATIENCE_S = 10.0

FollowerLink = RankLink[ToLeader, ToFollower]


class FollowerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One rank but the first of the worker in `worker`, whose options already have the sizes that
    the leader chose, and whose KV has that `identity` and so many `blocks`. All ranks meet at
    `meeting_place`. `agent` begins the names of the worker's processes; `parent` is the
    leader's."""

    worker: WorkerSetup
    rank: int
    agent: str
    meeting_place: str
    identity: str
    blocks: int
    parent: int = msgspec.field(default_factory=os.getpid)


def run_follower(descriptor: int) -> None:
    """Until the leader ends, or this rank cannot go on, which it reports."""
    link = link_to_leader(descriptor, PATIENCE_S)
    begin = link.receive()
    assert isinstance(begin, RankBegins)
    setup = msgspec.json.decode(begin.setup, type=FollowerSetup)
    end_with_parent(setup.parent)
    log_of_process(setup.worker.options, f"{setup.worker.worker}-rank-{setup.rank}")
    try:
        reason = _follow(setup, link)
    except TandemError as error:
        logger.error("rank %d cannot go on: %s", setup.rank, error)
        link.send(RankFailed(str(error)))
        raise SystemExit(1) from error
    logger.info("rank %d ends: %s", setup.rank, reason)


def _follow(setup: FollowerSetup, link: FollowerLink) -> str:
    agent = f"{setup.agent}/rank{setup.rank}"
    startup = StartUp(f"{setup.worker.worker} rank {setup.rank}")
    startup.so_far("import")
    planned = plan_worker(setup.worker, leads=False)
    # Others read from a place that the number of blocks decides.
    assert planned.export.block_count == setup.blocks
    if planned.export.identity != setup.identity:
        raise InvalidConfiguration(
            "the first rank computes other numbers: weights or configuration changed while the "
            "ranks were starting"
        )
    place = planned.places[setup.rank]
    with startup.phase("meeting the other ranks"):
        groups = connect(world_of(planned, place.rank, setup.meeting_place))
    failure = RankFailed("the KV transfers failed")
    calls = TransferCalls(link.send, lambda: link.send(failure), now_ns)
    rank = load_rank(planned, place, groups, calls, agent=agent)
    follower = Follower(
        link, rank.engine, rank.transfers, draws=place.is_last and place.tensor_rank == 0
    )
    link.send(RankReady(rank.transfers.endpoints()))
    startup.ready()
    try:
        return follower.run()
    finally:
        end_within(SHUTDOWN_S, 1)
        rank.close()
        disconnect()


class Follower:
    """`draws`: this rank sends the leader what the steps drew."""

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
            case Ping():
                self._link.send(Pong())
            case RankBegins():
                raise RankLost("the leader began twice")
            case _:
                perform_transfer(message, self._transfers)

    def _compute(self) -> None:
        self._engine.adopt_thread()
        for work in self._thread.work():
            if isinstance(work, TokensLanded):
                self._engine.take_landed(work.step_id, work.tokens, work.counts)
                continue
            step = self._engine.launch(work)
            if self._draws:
                self._link.send(step.result())

    def _engine_failed(self, failure: Exception) -> None:
        try:
            self._link.send(RankFailed(f"{type(failure).__name__}: {failure}"))
        except RankLost as lost:
            logger.warning("the leader cannot be reached: %s", lost)
        self._link.close()


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    run_to_the_end(lambda: run_follower(int(sys.argv[1])))
