"""Runs a cluster in the foreground: says how it starts, greets, tells what happens, ends it."""

import asyncio
import logging
import signal
from pathlib import Path

from rich.console import Console

from tandem.commands.cluster.client_keys import has_client_keys
from tandem.commands.cluster.launchers import make_launcher
from tandem.commands.cluster.run import ClusterRun, RunLimits, View
from tandem.commands.cluster.view import members_table
from tandem.commands.greeting import Greeting
from tandem.config.api_options import check_exposure
from tandem.config.cluster.live import LiveFile, gateway_options
from tandem.live.launching.state_directory import StateDirectory
from tandem.live.launching.supervisor import Notice
from tandem.messages.gateway import ClusterStatus

CTRL_C = "Ctrl-C stops the cluster."


class Screen:
    """What a person sees of a cluster. In a terminal the phases of its start share one line."""

    def __init__(self, console: Console, stops: str) -> None:
        self._console = console
        self._stops = stops
        self._status = console.status("starting")
        self._last = ""

    def phase(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        if self._console.is_terminal:
            self._status.update(text)
            self._status.start()
        else:
            self._console.print(f"  [dim]{text}[/dim]", soft_wrap=True)

    def notice(self, notice: Notice) -> None:
        self._console.print(f"[yellow]{notice.name}[/yellow] {notice.text}", soft_wrap=True)

    def ready(self, run: ClusterRun, status: ClusterStatus) -> None:
        self.stop()
        self._console.print()
        self._console.print(members_table(status.workers))
        options = run.gateways[0].options
        name = Path(run.setups.model).name if run.setups.model else "tandem-mini"
        name = next(iter(options.served_model_name), name)
        closed = has_client_keys(run.file.cluster, options)
        greeting = Greeting(name, run.url, closed, self._stops)
        if warning := check_exposure(options, has_keys=closed):
            self._console.print(f"[yellow]{warning}[/yellow]", soft_wrap=True)
        self._console.print(str(greeting), soft_wrap=True)

    def left_behind(self, folder: Path) -> None:
        self._console.print(f"Logs are left in {folder}", soft_wrap=True)

    def stop(self) -> None:
        """Leave the line of the phases."""
        self._status.stop()


def run_cluster(
    file: LiveFile, directory: StateDirectory, screen: Screen, limits: RunLimits
) -> None:
    """From its start until a signal ends it, in a directory that nobody else has. Raises
    `InvalidConfiguration`, `ClusterRunning` or `ProcessesFailed`."""
    logging.basicConfig(level=gateway_options(file.cluster, ()).log_level.upper())
    directory.claim()
    failed = True
    try:
        asyncio.run(_run(file, directory, screen, limits))
        failed = False
    finally:
        if failed and directory.logs:
            screen.left_behind(directory.path)
            directory.release()
        else:
            directory.clear()


async def _run(
    file: LiveFile, directory: StateDirectory, screen: Screen, limits: RunLimits
) -> None:
    view = View(screen.phase, screen.notice, screen.ready)
    launcher = make_launcher(file.cluster, screen.notice)
    run = ClusterRun(file, directory, view, limits=limits, launcher=launcher)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await run.run(stop)
    finally:
        screen.stop()
