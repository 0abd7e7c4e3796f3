"""`tandem drain`, `undrain` and `flip`: take a worker out of service, back in, or into another
role, while it goes on answering."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

import typer

from tandem.commands.cluster_view import terminal
from tandem.commands.options import with_options
from tandem.commands.which_cluster import WhichCluster, find_running
from tandem.facts.fleet import Role
from tandem.live.gateway.operators import Operators

WorkerArgument = Annotated[str, typer.Argument(help="Its name, as `tandem status` shows it.")]


@dataclass(frozen=True)
class DrainOptions:
    """How long it may take."""

    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout-s", min=0.1, help="Stop waiting after this; it drains all the same."
        ),
    ] = 600.0


@dataclass(frozen=True)
class LeaveOptions:
    """What comes then."""

    leave: Annotated[
        bool, typer.Option("--leave", help="End the worker's process when nothing is left on it.")
    ] = False


@with_options
def drain_command(
    worker: WorkerArgument, leaving: LeaveOptions, options: DrainOptions, which: WhichCluster
) -> None:
    """Give a worker no new requests, and wait until it has none left."""
    _drain(worker, None, leaving.leave, (options, which))
    said = "has left" if leaving.leave else "is empty; `tandem undrain` puts it back to work"
    terminal().print(f"{worker} {said}")


@with_options
def flip_command(
    worker: WorkerArgument,
    role: Annotated[Role, typer.Argument(help="What it is to do from then on.")],
    options: DrainOptions,
    which: WhichCluster,
) -> None:
    """Give a worker another role: it finishes or hands over what it has, and keeps its cache."""
    _drain(worker, role, False, (options, which))
    terminal().print(f"{worker} now takes {role.value}")


@with_options
def undrain_command(worker: WorkerArgument, options: DrainOptions, which: WhichCluster) -> None:
    """Put a drained worker back to work."""
    cluster = find_running(which)
    operators = Operators(cluster.endpoints, cluster.keys, options.timeout_s)
    asyncio.run(operators.undrain(worker))
    terminal().print(f"{worker} takes requests again")


def _drain(
    worker: str, role: Role | None, leave: bool, context: tuple[DrainOptions, WhichCluster]
) -> None:
    options, which = context
    cluster = find_running(which)
    operators = Operators(cluster.endpoints, cluster.keys, options.timeout_s)
    asyncio.run(operators.drain(worker, role, leave))
