"""`tandem join`: one more worker for a running cluster, or one more process for its shared pool, in
this terminal."""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from rich.console import Console

from tandem.commands.foreground import Foreground
from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import terminal
from tandem.commands.which_cluster import (
    ClusterElsewhere,
    ClusterToJoin,
    WhichCluster,
    cluster_to_join,
    host_names,
    process_name,
    until_resolved,
)
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.tiers import process_names
from tandem.config.cluster.workers import PoolConfig
from tandem.facts.errors import InvalidConfiguration, nearest
from tandem.facts.fleet import Role
from tandem.live.gateway.operators import PATIENCE_S, Operators
from tandem.live.launching.launcher import Program
from tandem.live.launching.state_directory import ProcessRecord
from tandem.live.processes.cluster import ProcessesFailed
from tandem.live.processes.lifecycle import ended_by_signals, run_ended_by_signals
from tandem.live.processes.member_health import MemberHealth, serve_health, watch
from tandem.live.processes.setups import program_of

POLL_S = 0.2


@flags
class JoinOptions:
    """What joins."""

    pool: str | None = flag("The pool to enlarge. (default: the only one)", default=None)
    shared_pool: bool = flag(
        "No worker: a process of the shared pool (tiers.remote).", "--shared-pool", default=False
    )
    role: Role | None = flag("Another role than the pool's.", default=None)
    worker: str | None = flag(
        "Its name. (default: the pool's next; with --gateway this host's, with -2, -3, ... behind "
        "it for further ones)",
        default=None,
    )
    listen_s: float = flag(
        "Give up if it has not joined by then.", "--start-timeout-s", default=900.0, min=1
    )
    health_port: int | None = flag(
        "Answers /health and /ready here, over HTTP. (default: nowhere)",
        default=None,
        min=1,
        max=65535,
    )


@with_options
def join_command(which: WhichCluster, elsewhere: ClusterElsewhere, options: JoinOptions) -> None:
    """Start one more worker of a running cluster; Ctrl-C drains it and ends it.

    On another machine, give it --file, --keys and --gateway, or a copy of the cluster's state
    directory with --state-dir.
    """
    with ended_by_signals(), cluster_to_join(which, elsewhere) as target:
        run_ended_by_signals(lambda: _join(target, options, terminal()))


async def _join(target: ClusterToJoin, options: JoinOptions, console: Console) -> None:
    await until_resolved(target.endpoints, options.listen_s)
    # A gateway that is not there is not waited for longer than for the worker to have joined.
    patience_s = min(PATIENCE_S, options.listen_s)
    asked = await Operators(target.endpoints, target.keys, patience_s).statuses()
    taken = {member for status in asked for member in status.members}
    operators = Operators(target.endpoints, target.keys)
    program = replace(_program(target, options, taken), log=None)
    name = program.name
    console.print(f"[bold]{name}[/bold] starts with {target.cluster.model} …", soft_wrap=True)
    foreground, health = Foreground(), MemberHealth(name)

    def started(pid: int) -> None:
        health.pid = pid

    beside = [_announce(target, operators, name, options.listen_s, console)]
    if target.supervisor is not None:
        beside.append(_leave_with(target.supervisor, foreground))
    if options.health_port is not None:
        beside += [watch(health, operators), serve_health(health, options.health_port)]
    try:
        was_ready = await _with_others(foreground.run(program, started), beside)
    finally:
        foreground.tell_to_end()
        (target.directory.path / f"{name}.setup.json").unlink(missing_ok=True)
    console.print(f"{name} has left" if was_ready else f"{name} has ended before it was ready")


async def _with_others(
    work: Coroutine[Any, Any, bool], others: list[Coroutine[Any, Any, None]]
) -> bool:
    """What the work gives. The others end with it, and end it when one fails."""
    working = asyncio.create_task(work)
    waiting: set[asyncio.Task[Any]] = {working, *map(asyncio.create_task, others)}
    tasks = list(waiting)
    try:
        while not working.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
    return working.result()


async def _announce(
    target: ClusterToJoin, operators: Operators, name: str, limit_s: float, console: Console
) -> None:
    """Says when the worker is in. Raises `ProcessesFailed` when it takes longer than it may."""
    try:
        async with asyncio.timeout(limit_s):
            while not any(name in status.members for status in await operators.statuses()):
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise ProcessesFailed(
            f"{name} has not joined after {limit_s:g} s; its log says why, or give more "
            "--start-timeout-s"
        ) from error
    console.print(
        f"[bold green]{name}[/bold green] has joined cluster {target.cluster.name}; Ctrl-C drains "
        "it and ends it"
    )


async def _leave_with(supervisor: ProcessRecord, foreground: Foreground) -> None:
    """Ends the worker when the cluster has ended: nobody would ever ask it for anything."""
    while supervisor.alive:
        await asyncio.sleep(POLL_S)
    foreground.tell_to_end()


def _program(target: ClusterToJoin, options: JoinOptions, taken: set[str]) -> Program:
    """Of what joins. Raises `InvalidConfiguration`."""
    cluster, setups, endpoints = target.cluster, target.setups(), tuple(target.endpoints)
    if not options.shared_pool:
        pool = _pool(cluster, options)
        name = _name(target, options, pool.name, taken)
        worker = setups.worker(pool, name, endpoints)
        return program_of(worker, target.directory)
    if cluster.tiers.remote is None:
        raise InvalidConfiguration("--shared-pool: the cluster file names no tiers.remote")
    if options.pool is not None or options.role is not None:
        raise InvalidConfiguration("--shared-pool: leave out --pool and --role, which workers have")
    name = _name(target, options, "pool", taken)
    return program_of(setups.pool_node(name, endpoints), target.directory)


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


def _name(target: ClusterToJoin, options: JoinOptions, kind: str, taken: set[str]) -> str:
    """As given, or the first of its kind that nobody has, or on a machine of its own the host's.
    Another process on this machine may have one that no gateway knows yet."""
    if options.worker is None:
        names: Iterator[str] = map(process_name, host_names())
        if not target.is_alone:
            # One that died, and that its supervisor is about to start again, still has its name.
            taken = taken | target.processes | set(process_names(target.cluster))
            names = (f"{kind}-{index}" for index in count())
        return next(name for name in names if name not in taken and target.names.take(name))
    name = process_name(options.worker)
    if name in taken or not target.names.take(name):
        raise InvalidConfiguration(f"there is a worker {name} already; choose another --worker")
    planned = target.cluster.plans and not target.is_alone
    if planned and name in process_names(target.cluster):
        raise InvalidConfiguration(
            f"{name} is for the cluster's planner to start; choose another --worker"
        )
    return name
