"""`tandem down`: stops a running cluster."""

import asyncio
import signal
from contextlib import suppress

from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import terminal
from tandem.commands.which_cluster import WhichCluster, find_running
from tandem.facts.errors import TandemError
from tandem.live.launching.state_directory import (
    ClusterRunning,
    ProcessRecord,
    StateDirectory,
)

POLL_S = 0.05
LOCK_LOOKS = 100


class StillRunning(TandemError):
    """The cluster did not end within the time it was given."""


@flags
class DownOptions:
    """How long it may take."""

    timeout_s: float = flag("Give up waiting after this.", default=60.0, min=0.1)
    kill: bool = flag("End every process at once; answers break off.", "--kill", default=False)


@with_options
def down_command(which: WhichCluster, options: DownOptions) -> None:
    """Stop a running cluster: answers under way end first, within some seconds."""
    cluster = find_running(which)
    record, console = cluster.record, terminal()
    processes = [record.supervisor, *record.processes.values()]
    number = signal.SIGKILL if options.kill else signal.SIGTERM
    # The kernel ends what a supervisor started together with it.
    asked = processes if options.kill else [record.supervisor]
    unasked = [process for process in asked if not process.send(number)]
    if living := [str(process.pid) for process in unasked if process.alive]:
        raise StillRunning(
            f"cluster {record.name} still runs: no signal may be sent to {', '.join(living)}, of "
            "another user or beyond a sandbox; end it as who started it"
        )
    if not asyncio.run(_ended(processes, options.timeout_s)):
        raise StillRunning(
            f"cluster {record.name} still runs after {options.timeout_s:g} s; look again with "
            "`tandem status`, or end it with --kill"
        )
    if options.kill:
        asyncio.run(_claim(cluster.directory))
        cluster.directory.clear()
    console.print(f"cluster {record.name} is stopped")


async def _claim(directory: StateDirectory) -> None:
    """The lock of a process with many threads goes some moments after the process. Raises
    `ClusterRunning` when somebody else has it by then."""
    for _ in range(LOCK_LOOKS):
        with suppress(ClusterRunning):
            directory.claim()
            return
        await asyncio.sleep(POLL_S)
    directory.claim()


async def _ended(processes: list[ProcessRecord], limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            while any(process.alive for process in processes):
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        return False
    return True
