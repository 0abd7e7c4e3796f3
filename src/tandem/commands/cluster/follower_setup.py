"""What the leader of a worker tells the process of another rank, over the socket between them."""

import os
import sys

import msgspec

from tandem.config.processes import WorkerSetup

# The number of the process's end of the socket follows.
FOLLOWER_COMMAND = (sys.executable, "-m", "tandem.commands.cluster.follower_process")
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
