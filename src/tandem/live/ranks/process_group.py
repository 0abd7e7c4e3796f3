"""Where the ranks of one worker meet, all of them processes of this host."""

import os


def meeting_place() -> str:
    """For `kernels.collectives`: a file in memory, which nothing is left of however the process
    ends. It stays open until then, as ranks come back to it when they part. Only this user can
    find it, and what the ranks then say to each other stays on this host."""
    # The library would otherwise listen on whatever address the host's name has. It reads the
    # variable itself, here and in the processes started from here.
    os.putenv("GLOO_SOCKET_IFNAME", "lo")
    descriptor = os.memfd_create("tandem-ranks")
    return f"file:///proc/{os.getpid()}/fd/{descriptor}"
