"""A cluster in the foreground of a terminal: runs it from its start to a signal, and shows the
phases of its start, how to use it, and notices of its supervisor."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tandem.commands.cluster_view import members_table
from tandem.commands.late_imports import part
from tandem.commands.options import DEFAULT_URL
from tandem.commands.terminal import own_command, print_detail, print_warning
from tandem.config.api_options import check_exposure, has_client_keys
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import LiveFile, gateway_options
from tandem.config.environment import BUNDLED_MODEL, child_environment
from tandem.config.machine_share import bundles, on_ray
from tandem.config.start_notes import beside_the_model
from tandem.live.adapters import names_in
from tandem.live.launching.launcher import Launcher, LocalLauncher
from tandem.live.launching.ray_places import RayTerms
from tandem.live.launching.state_directory import ADAPTERS_FILE, StateDirectory
from tandem.live.launching.supervisor import Notice
from tandem.live.log_format import begin_log
from tandem.live.processes.before_start import check_launcher
from tandem.live.processes.cluster import ClusterRun, RunLimits, View
from tandem.live.processes.setups import listen_address
from tandem.messages.gateway import ClusterStatus

CTRL_C = "Ctrl-C stops the cluster."


class Screen:
    """What a person sees of a cluster. In a terminal the phases of its start share one line."""

    def __init__(self, console: Console, stops: str) -> None:
        self._console = console
        self._stops = stops
        self._status = console.status("starting")
        self._last = ""

    def starting(self, what: str, cuts: Sequence[str]) -> None:
        """`cuts` are what is less than wished for."""
        self._console.print(f"[bold]Tandem[/bold] is starting {what} …")
        for cut in cuts:
            print_detail(self._console, cut)

    def phase(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        if self._console.is_terminal:
            self._status.update(text)
            self._status.start()
        else:
            print_detail(self._console, text)

    def notice(self, notice: Notice) -> None:
        self._console.print(f"[yellow]{notice.name}[/yellow] {notice.text}", soft_wrap=True)

    def ready(self, run: ClusterRun, status: ClusterStatus) -> None:
        self.stop()
        self._console.print()
        self._console.print(members_table(status.workers))
        options = run.gateways[0].options
        adapters = names_in(run.directory.path / ADAPTERS_FILE).values()
        for note in beside_the_model(options, adapters):
            print_detail(self._console, note)
        name = Path(run.setups.model).name if run.setups.model else BUNDLED_MODEL.name
        name = next(iter(options.served_model_name), name)
        closed = has_client_keys(run.file.cluster, options)
        print_warning(self._console, check_exposure(options, has_keys=closed))
        print_ready(self._console, name, run.url, needs_key=closed, stops=self._stops)

    def ending(self, requests: int | None, most_s: float) -> None:
        """What the end waits for. Whoever stops it from elsewhere has no Ctrl-C."""
        text = ending_text(requests, most_s)
        self.phase(text if "Ctrl-C" in self._stops else text.partition(";")[0])

    def left_behind(self, folder: Path) -> None:
        self._console.print(f"Logs are left in {folder}", soft_wrap=True)

    def stop(self) -> None:
        """Leave the line of the phases."""
        self._status.stop()


Visit = Callable[[], Coroutine[Any, Any, None]]
"""What is done with a cluster that is ready; the cluster ends when it is done."""


def run_cluster(
    file: LiveFile,
    directory: StateDirectory,
    screen: Screen,
    limits: RunLimits,
    visit: Visit | None = None,
) -> None:
    """From its start until a signal ends it, or the `visit` is done, in a directory that nobody
    else has. Raises `InvalidConfiguration`, `ClusterRunning` or `ProcessesFailed`, and what the
    visit raises."""
    options = gateway_options(file.cluster, ())
    begin_log(options.log_level, options.log_format, "supervisor", logging.BASIC_FORMAT)
    directory.claim()
    failed = True
    try:
        asyncio.run(_run(file, directory, screen, limits, visit))
        failed = False
    finally:
        if failed and directory.logs:
            screen.left_behind(directory.path)
            directory.release()
        else:
            directory.clear()


async def _run(
    file: LiveFile,
    directory: StateDirectory,
    screen: Screen,
    limits: RunLimits,
    visit: Visit | None,
) -> None:
    stop = asyncio.Event()
    visits: list[asyncio.Task[None]] = []

    def ready(run: ClusterRun, status: ClusterStatus) -> None:
        screen.ready(run, status)
        if visit is not None:
            visits.append(asyncio.create_task(until_visited(visit, stop)))

    view = View(screen.phase, screen.notice, ready, screen.ending)
    launcher = _make_launcher(file.cluster, screen.notice)
    run = ClusterRun(file, directory, view, limits=limits, launcher=launcher)
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        if stop.is_set():
            run.end_now()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled)
    try:
        await run.run(stop)
        await asyncio.gather(*visits)
    finally:
        screen.stop()


async def until_visited(visit: Visit, stop: asyncio.Event) -> None:
    """The visit, which is broken off when the cluster stops, and stops it at its end."""
    visiting, stopping = asyncio.ensure_future(visit()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((visiting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if visiting.done():
            visiting.result()
    finally:
        stop.set()
        for task in (visiting, stopping):
            task.cancel()
        await asyncio.gather(visiting, stopping, return_exceptions=True)


def ending_text(requests: int | None, most_s: float) -> str:
    """What a server or cluster waits for that was told to end; None: how many is not known."""
    if requests == 0:
        return "ending: no request is under way"
    if requests is None:
        return f"ending: requests under way get {most_s:g} s at most; Ctrl-C again ends at once"
    each = "1 request" if requests == 1 else f"{requests} requests"
    return f"ending: waiting for {each} under way, {most_s:g} s at most; Ctrl-C again ends at once"


def print_ready(console: Console, name: str, url: str, *, needs_key: bool, stops: str) -> None:
    """How to use a server that is ready: `name` is the model's as clients call it, `stops` says how
    to stop it."""
    header = ' -H "Authorization: Bearer $TANDEM_API_KEY"' if needs_key else ""
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    keys = " --api-key $TANDEM_API_KEY" if needs_key else ""
    local = keys + ("" if url == DEFAULT_URL else f" --url {url}")
    console.print(
        f"\n[bold green]Ready.[/bold green] {name} is served on [bold]{url}/v1[/bold] "
        f"(page: {url}/, docs: {url}/docs, metrics: {url}/metrics)\n\n"
        f"  {own_command()} chat{local}\n"
        f"  curl {url}/v1/chat/completions{header} -H 'Content-Type: application/json' \\\n"
        f"    -d '{body}'\n\n"
        f"{stops}\n",
        soft_wrap=True,
    )


def _make_launcher(cluster: Cluster, notify: Callable[[Notice], None]) -> Launcher:
    """On whose machines the cluster file wants the processes. Not open yet. Raises
    `InvalidConfiguration`."""
    if not on_ray(cluster):
        return LocalLauncher()
    check_launcher(cluster)
    terms = RayTerms(
        address=cluster.ray.address,
        placement=cluster.ray.placement,
        patience_s=cluster.ray.timeout_s,
        bundles=bundles(cluster),
        listen_host=listen_address(cluster)[0],
        ambient=child_environment(),
    )
    # An extra that takes a second to import.
    launcher: Launcher = part("Ray launcher").RayLauncher(
        terms, lambda name, text: notify(Notice(name, text))
    )
    return launcher
