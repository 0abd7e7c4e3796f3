"""Starts the processes of the other ranks of a worker."""

import socket
import subprocess
from collections.abc import Sequence

from tandem.live.ranks.link import RankLink
from tandem.live.ranks.ranks import Follower
from tandem.messages.ranks import TO_FOLLOWER, TO_LEADER, ToFollower, ToLeader


def start_follower(command: Sequence[str], patience_s: float) -> Follower:
    """Run a command with the number of its socket as the last word; it writes to the same log."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    return Follower(process, RankLink(ours, (TO_FOLLOWER, TO_LEADER), patience_s))


def link_to_leader(descriptor: int, patience_s: float) -> RankLink[ToLeader, ToFollower]:
    """The other end, in the process that was started."""
    return RankLink(socket.socket(fileno=descriptor), (TO_LEADER, TO_FOLLOWER), patience_s)
