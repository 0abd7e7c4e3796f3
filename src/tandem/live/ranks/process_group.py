"""Where the ranks of one worker meet, all of them processes of this host."""

import os
import tempfile


class MeetingPlace:
    """For `kernels.collectives`, until it is removed: nobody needs it once all have met. Only this
    user can find it, and what the ranks then say to each other stays on this host."""

    def __init__(self) -> None:
        # The library would otherwise listen on whatever address the host's name has. It reads the
        # variable itself, here and in the processes started from here.
        os.putenv("GLOO_SOCKET_IFNAME", "lo")
        self._directory = tempfile.TemporaryDirectory(prefix="tandem-ranks-")
        self.url = f"file://{self._directory.name}/meeting"

    def remove(self) -> None:
        """May be called again, and from any thread."""
        self._directory.cleanup()
