"""Where the ranks of one worker meet, all of them processes of this host."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def meeting_place() -> Iterator[str]:
    """A place for `kernels.collectives`, while the block runs: nobody needs it once all have met.
    Only this user can find it, and what the ranks then say to each other stays on this host."""
    # The library would otherwise listen on whatever address the host's name has. It reads the
    # variable itself, here and in the processes started from here.
    os.putenv("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="tandem-ranks-") as directory:
        yield f"file://{directory}/meeting"
