"""`tandem join`: one more worker for a running cluster, in this terminal."""

import asyncio
import signal
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Console

from tandem.commands.cluster.operators import Operators
from tandem.commands.cluster.places import RunningCluster, WhichCluster, find_running
from tandem.commands.cluster.run import ProcessesFailed
from tandem.commands.cluster.setups import CLUSTER_FILE, Setups, process_environment, worker_program
from tandem.commands.cluster.view import terminal
from tandem.commands.options import with_options
from tandem.config.cluster import Cluster, PoolConfig
from tandem.config.cluster_live import read_live_cluster
from tandem.config.cluster_tree import nearest
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.live.launching.launcher import LocalLauncher

POLL_S = 0.2


@dataclass(frozen=True)
class JoinOptions:
    """What joins."""

    pool: Annotated[
        str | None, typer.Option(help="The pool to enlarge. (default: the only one)")
    ] = None
    role: Annotated[Role | None, typer.Option(help="Another role than the pool's.")] = None
    worker: Annotated[
        str | None, typer.Option("--worker", help="Its name. (default: the pool's next)")
    ] = None
    listen_s: Annotated[
        float,
        typer.Option("--start-timeout-s", min=1, help="Give up if it has not joined by then."),
    ] = 900.0


@with_options
def join_command(which: WhichCluster, options: JoinOptions) -> None:
    """Start one more worker of a running cluster; Ctrl-C drains it and ends it.

    On another machine, give it a copy of the cluster's state directory with --state-dir.
    """
    cluster = find_running(which, elsewhere=True)
    asyncio.run(_join(cluster, options, terminal()))


async def _join(cluster: RunningCluster, options: JoinOptions, console: Console) -> None:
    described = _described(cluster)
    pool = _pool(described, options)
    operators = Operators(cluster.endpoints, cluster.keys)
    taken = {worker.worker for status in await operators.statuses() for worker in status.workers}
    name = options.worker or _next_name(pool, {*taken, *cluster.record.processes})
    if name in taken:
        raise InvalidConfiguration(f"there is a worker {name} already; choose another --worker")
    setup = Setups(described, cluster.keys).worker(pool, name, tuple(cluster.endpoints))
    program = worker_program(setup, cluster.directory, process_environment())
    console.print(f"[bold]{name}[/bold] is loading {described.model} …", soft_wrap=True)
    launcher = LocalLauncher()
    await launcher.start(replace(program, log=None))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A second one reaches a worker that drains already, and ends it at once.
        loop.add_signal_handler(number, launcher.send, name, signal.SIGTERM)
    telling = asyncio.create_task(_tell(cluster, operators, (name, options.listen_s), console))
    leaving = asyncio.create_task(_leave_with(cluster, launcher, name))
    try:
        ended = await launcher.ended()
    finally:
        telling.cancel()
        leaving.cancel()
        (cluster.directory.path / f"{name}.setup.json").unlink(missing_ok=True)
    if ended.code:
        raise ProcessesFailed(f"{name} {ended.how}")
    console.print(f"{name} has left")


async def _tell(
    cluster: RunningCluster, operators: Operators, who: tuple[str, float], console: Console
) -> None:
    """Says when the worker is in."""
    name, limit_s = who
    try:
        async with asyncio.timeout(limit_s):
            while not any(
                name == worker.worker
                for status in await operators.statuses()
                for worker in status.workers
            ):
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        console.print(f"[yellow]{name}[/yellow] has not joined after {limit_s:g} s; see its log")
        return
    console.print(
        f"[bold green]{name}[/bold green] has joined cluster {cluster.record.name}; Ctrl-C drains "
        "it and ends it"
    )


async def _leave_with(cluster: RunningCluster, launcher: LocalLauncher, name: str) -> None:
    """Ends the worker when the cluster has ended: nobody would ever ask it for anything. Of a
    cluster on another machine nobody here knows."""
    if not cluster.record.supervisor.alive:
        return
    while cluster.record.supervisor.alive:
        await asyncio.sleep(POLL_S)
    launcher.send(name, signal.SIGTERM)


def _described(cluster: RunningCluster) -> Cluster:
    """The cluster file, with the model under the name that everybody in there knows it by."""
    described = read_live_cluster(str(cluster.directory.path / CLUSTER_FILE)).cluster
    return replace(described, model=cluster.record.model or "tandem-mini")


def _pool(cluster: Cluster, options: JoinOptions) -> PoolConfig:
    names = [pool.name for pool in cluster.pools]
    if options.pool is None and len(names) > 1:
        raise InvalidConfiguration(f"say which pool it joins, as --pool {names[0]}")
    if options.pool is not None and options.pool not in names:
        raise InvalidConfiguration(
            f"--pool {options.pool}: no such pool{nearest(options.pool, names)}"
        )
    pool = next(pool for pool in cluster.pools if options.pool in (None, pool.name))
    return pool if options.role is None else replace(pool, role=options.role)


def _next_name(pool: PoolConfig, taken: set[str]) -> str:
    """The first of the pool that nobody has."""
    return next(
        name
        for index in range(len(taken) + pool.count + 1)
        if (name := f"{pool.name}-{index}") not in taken
    )
