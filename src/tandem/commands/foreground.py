"""One process of a cluster in this terminal: it is started, told to end by the terminal's signals,
and watched until it has ended."""

import asyncio
import signal
from collections.abc import Callable

from tandem.live.launching.launcher import Ended, ExitCode, LocalLauncher, Program
from tandem.live.processes.cluster import ProcessesFailed


class Foreground:
    """Runs one program at a time. To be made on the event loop, whose signals it takes: the first
    tells the process to end, and a second one reaches a process that ends already, and ends it at
    once."""

    def __init__(self) -> None:
        self._launcher = LocalLauncher()
        self._name = ""
        self._told_to_end = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.tell_to_end)

    async def run(self, program: Program, started: Callable[[int], None]) -> bool:
        """Until it has ended; one that leaves to come back is started again. `started` is told the
        number of each process. False where it was told to end before it was ready. Raises
        `ProcessesFailed` when it ended otherwise than it was to."""
        self._name = program.name
        was_ready = False
        while not self._told_to_end:
            started(await self._launcher.start(program))
            if self._told_to_end:
                # It was while the process was not there yet.
                self.tell_to_end()
            ended = await self._launcher.ended()
            if ended.code != ExitCode.AGAIN:
                return self._was_ready(ended)
            was_ready = True
        return was_ready

    def tell_to_end(self) -> None:
        """Nothing happens if the process has ended."""
        self._told_to_end = True
        self._launcher.send(self._name, signal.SIGTERM)

    def _was_ready(self, ended: Ended) -> bool:
        # What still loads has nothing to finish: it heeds no signal yet, and dies of it.
        if self._told_to_end and ended.code == -signal.SIGTERM:
            return False
        if ended.code:
            raise ProcessesFailed(f"{ended.name} {ended.how}")
        return True
