"""`tandem up`: a whole cluster from a cluster file, in this terminal or in the background."""

import asyncio
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tandem.commands.cluster_screen import CTRL_C, Screen, run_cluster
from tandem.commands.options import flag, flags, settings_flag, with_options
from tandem.commands.terminal import terminal
from tandem.commands.which_cluster import state_directory
from tandem.config.cluster.file import bundled_clusters
from tandem.config.cluster.live import read_live_cluster
from tandem.live.launching.state_directory import SUPERVISOR_LOG, ClusterRunning, StateDirectory
from tandem.live.processes.before_start import check_before_start
from tandem.live.processes.cluster import ProcessesFailed, RunLimits
from tandem.live.processes.setups import TANDEM

POLL_S = 0.1


@flags
class UpOptions:
    """How it is started."""

    settings: list[str] | None = settings_flag("pools.decode.count=4")
    detach: bool = flag(
        "Return once it is ready; it goes on running.", "--detach", "-d", default=False
    )
    start_timeout_s: float = flag("Give up if it is not ready by then.", default=900.0, min=1)
    in_background: bool = flag("", "--in-background", default=False, hidden=True)
    state_dir: Path | None = flag(
        "Where it keeps its files while it runs. "
        "(default: a directory of this user, by the cluster's name)",
        default=None,
    )


@with_options
def up_command(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER",
            help=f"A cluster file, or one of {', '.join(bundled_clusters())}.",
        ),
    ],
    options: UpOptions,
) -> None:
    """Start a cluster on this machine: gateways and workers, each in a process of its own."""
    # There may be keys in them, and everybody could read the words of the process.
    settings = json.load(sys.stdin) if options.in_background else options.settings or ()
    file = read_live_cluster(cluster, settings)
    directory = state_directory(file.cluster.name, options.state_dir)
    cuts = check_before_start(file, directory)
    if options.detach:
        _detach(cluster, options, directory, terminal())
        return
    stops = "`tandem down` stops the cluster." if options.in_background else CTRL_C
    screen = Screen(terminal(), stops)
    screen.starting(f"cluster {file.cluster.name} with {file.cluster.model}", cuts)
    run_cluster(file, directory, screen, RunLimits(start_s=options.start_timeout_s))


def _detach(cluster: str, options: UpOptions, directory: StateDirectory, console: Console) -> None:
    """The same command in a session of its own; this one only waits until it is ready, and passes
    on what it says."""
    directory.prepare()
    if directory.claimed:
        raise ClusterRunning(f"a cluster runs in {directory.path} already")
    command = [*TANDEM, "up", cluster, "--in-background", "--state-dir", str(directory.path)]
    command += ["--start-timeout-s", str(options.start_timeout_s)]
    log = directory.write_private(SUPERVISOR_LOG, b"")
    with log.open("ab") as output:
        supervisor = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert supervisor.stdin is not None
        with suppress(BrokenPipeError), supervisor.stdin as settings:
            settings.write(json.dumps(options.settings or []).encode())
    with log.open(errors="replace") as written:
        try:
            ready = asyncio.run(_until_ready(supervisor, directory))
        finally:
            console.print(written.read(), end="", markup=False, soft_wrap=True)
    if not ready:
        supervisor.wait()
        raise ProcessesFailed("the cluster did not start")


async def _until_ready(supervisor: "subprocess.Popen[bytes]", directory: StateDirectory) -> bool:
    """Whether it got ready before it ended; it is bounded by the supervisor's own limit."""
    while supervisor.poll() is None:
        record = directory.read()
        if record is not None and record.ready and record.supervisor.pid == supervisor.pid:
            return True
        await asyncio.sleep(POLL_S)
    return False
