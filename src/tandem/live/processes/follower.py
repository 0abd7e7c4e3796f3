"""The process of one rank of a worker that does not lead: started by the leader, ends with it. What
the leader tells it (`FollowerSetup`) comes over the socket between them."""

import gc

if __name__ == "__main__":
    # torch makes a million objects that live as long as the process: a fifth of the time that its
    # import takes would go into looking for garbage among them.
    gc.disable()

import logging
import os
import sys

import msgspec

from tandem.config.processes import WorkerSetup
from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.kernels.collectives.distributed import connect, disconnect
from tandem.kv.transfer.config import TransferCalls
from tandem.live.clock import now_ns
from tandem.live.processes.lifecycle import (
    StartUp,
    end_with_parent,
    end_within,
    log_of_process,
    run_to_the_end,
)
from tandem.live.processes.worker_rank import load_rank, plan_worker, world_of
from tandem.live.ranks.follower import Follower, FollowerLink, MovesToLeader
from tandem.live.ranks.ranks import link_to_leader
from tandem.messages.ranks import RankBegins, RankFailed, RankReady

# Under its own name, which is another one while this is what was started.
logger = logging.getLogger("tandem.live.processes.follower")

SHUTDOWN_S = 5.0


# The number of the process's end of the socket follows.
FOLLOWER_COMMAND = (sys.executable, "-m", "tandem.live.processes.follower")
# A rank that takes no message for so long is lost.
PATIENCE_S = 10.0


class FollowerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One rank but the first of the worker in `worker`, whose options already have the sizes that
    the leader chose, and whose KV has that `identity`. All ranks meet at `meeting_place`. `agent`
    begins the names of the worker's processes; `parent` is the leader's."""

    worker: WorkerSetup
    rank: int
    agent: str
    meeting_place: str
    identity: str
    parent: int = msgspec.field(default_factory=os.getpid)


def run_follower(descriptor: int) -> None:
    """Until the leader ends, or this rank cannot go on: then the leader is told."""
    link = link_to_leader(descriptor, PATIENCE_S)
    begin = link.receive()
    assert isinstance(begin, RankBegins)
    setup = msgspec.json.decode(begin.setup, type=FollowerSetup)
    end_with_parent(setup.parent)
    log_of_process(setup.worker.options.log_level)
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
    if planned.export.identity != setup.identity:
        raise InvalidConfiguration(
            "the first rank computes other numbers: weights or configuration changed while the "
            "ranks were starting"
        )
    place = planned.places[setup.rank]
    with startup.phase("meeting the other ranks"):
        groups = connect(world_of(planned, place.rank, setup.meeting_place))
    moves = MovesToLeader(link)
    calls = TransferCalls(moves.move_ended, moves.blocks_published, moves.failed, now_ns)
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


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    run_to_the_end(lambda: run_follower(int(sys.argv[1])))
