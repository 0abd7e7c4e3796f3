"""`tandem restart`: every worker leaves and comes back, one after the other, while the cluster goes
on answering."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Annotated

import typer
from rich.console import Console

from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import terminal
from tandem.commands.which_cluster import RunningCluster, WhichCluster, find_running
from tandem.facts.errors import InvalidConfiguration, TandemError, nearest
from tandem.live.gateway.operators import NobodyAnswers, Operators
from tandem.messages.gateway import ClusterStatus, WorkerStatus

POLL_S = 0.1


class NotBack(TandemError):
    """A worker has left and does not come back."""


@flags
class RestartOptions:
    """Whom, and how long it may take."""

    all_workers: bool = flag("Every worker, one after the other.", "--all", default=False)
    timeout_s: float = flag(
        "Of one worker: stop waiting after this for it to be empty, and again for it to be back.",
        default=600.0,
        min=0.1,
    )


WorkersArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Names, as `tandem status` shows them.", show_default=False),
]


@with_options
def restart_command(
    options: RestartOptions, which: WhichCluster, workers: WorkersArgument = None
) -> None:
    """Start workers anew, one after the other: what one has goes on elsewhere first, and the next
    follows when it is back.

    No request fails for it. Ctrl-C stops after the worker whose turn it is, which still comes back.
    """
    cluster = find_running(which)
    asyncio.run(_restart(cluster, workers or [], options, terminal()))


async def _restart(
    cluster: RunningCluster, named: Sequence[str], options: RestartOptions, console: Console
) -> None:
    quick, patient = cluster.operators(), cluster.operators(options.timeout_s)
    statuses = await quick.statuses()
    if not statuses:
        raise NobodyAnswers("no gateway answers")
    mine = [each for each in statuses[0].workers if each.worker in cluster.record.processes]
    chosen = _chosen_workers(mine, named, options)
    _check_others_suffice(statuses[0].workers, chosen)
    for count, worker in enumerate(chosen, start=1):
        place = f"[dim]{count} of {len(chosen)}[/dim]  " if len(chosen) > 1 else ""
        console.print(f"{place}{worker.worker} drains …", soft_wrap=True)
        await patient.restart(worker.worker)
        await _until_back(quick, worker, options.timeout_s)
        if worker.role is not await _role(quick, worker.worker):
            # It comes back with the role of its pool: give it the one that it had.
            await patient.drain(worker.worker, worker.role, leave=False)
        console.print(f"{place}[bold green]{worker.worker}[/bold green] is back", soft_wrap=True)
    elsewhere = [each.worker for each in statuses[0].workers if each not in mine]
    if options.all_workers and elsewhere:
        console.print(
            f"{', '.join(elsewhere)}: not started by this cluster's supervisor; end it where it "
            "was started, and join it again"
        )


def _chosen_workers(
    mine: Sequence[WorkerStatus], named: Sequence[str], options: RestartOptions
) -> list[WorkerStatus]:
    """The workers to be started anew, in order. Raises `InvalidConfiguration`."""
    by_name = {each.worker: each for each in mine}
    if bool(named) == options.all_workers:
        raise InvalidConfiguration("name the workers to be started anew, or say --all")
    for name in named:
        if name not in by_name:
            raise InvalidConfiguration(
                f"the supervisor of this cluster has no worker {name}{nearest(name, by_name)}"
            )
    return [by_name[name] for name in dict.fromkeys(named or by_name)]


def _check_others_suffice(workers: Sequence[WorkerStatus], chosen: Sequence[WorkerStatus]) -> None:
    """Raises `InvalidConfiguration`, before the first worker drains, where no other would take what
    one of the chosen does."""
    working = [each for each in workers if each.accepting]
    for worker in chosen:
        others = [each.role for each in working if each.worker != worker.worker]
        for phase, stays, wanted in (
            ("prefill", any(role.prefills for role in others), worker.role.prefills),
            ("decode", any(role.decodes for role in others), worker.role.decodes),
        ):
            if wanted and not stays:
                raise InvalidConfiguration(
                    f"without {worker.worker} no worker would take {phase}: add one with `tandem "
                    f"join`, or have another do both for the time, as `tandem flip OTHER both`"
                )


async def _until_back(operators: Operators, before: WorkerStatus, limit_s: float) -> None:
    """Every gateway that answers knows the new process, which takes requests."""
    name = before.worker
    try:
        async with asyncio.timeout(limit_s):
            while not _back(await operators.statuses(), before):
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise NotBack(
            f"{name} has left and is not back after {limit_s:g} s; its log says why, and whoever "
            "else was to be started anew was left as it is"
        ) from error


def _back(statuses: Collection[ClusterStatus], before: WorkerStatus) -> bool:
    found = [
        next((each for each in status.workers if each.worker == before.worker), None)
        for status in statuses
    ]
    return bool(found) and all(
        each is not None and each.accepting and each.incarnation != before.incarnation
        for each in found
    )


async def _role(operators: Operators, name: str) -> object:
    statuses = await operators.statuses()
    return next((e.role for status in statuses for e in status.workers if e.worker == name), None)
