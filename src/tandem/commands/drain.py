"""`tandem drain`, `undrain` and `flip`: take a worker out of service, back in, or into another
role, while it goes on answering."""

import asyncio
from typing import Annotated

import typer

from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import terminal
from tandem.commands.which_cluster import WhichCluster, find_running
from tandem.facts.fleet import Role
from tandem.live.gateway.operators import Operators

WorkerArgument = Annotated[str, typer.Argument(help="Its name, as `tandem status` shows it.")]


@flags
class DrainOptions:
    """How long it may take."""

    timeout_s: float = flag(
        "Stop waiting after this; it drains all the same.", default=600.0, min=0.1
    )


@flags
class LeaveOptions:
    """What comes then."""

    leave: bool = flag(
        "End the worker's process when nothing is left on it.", "--leave", default=False
    )


@with_options
def drain_command(
    worker: WorkerArgument, leaving: LeaveOptions, options: DrainOptions, which: WhichCluster
) -> None:
    """Give a worker no new requests, and wait until it has none left."""
    asyncio.run(_operators(which, options).drain(worker, None, leaving.leave))
    outcome = "has left" if leaving.leave else "is empty; `tandem undrain` puts it back to work"
    terminal().print(f"{worker} {outcome}")


@with_options
def flip_command(
    worker: WorkerArgument,
    role: Annotated[Role, typer.Argument(help="What it is to do from then on.")],
    options: DrainOptions,
    which: WhichCluster,
) -> None:
    """Give a worker another role: it finishes or hands over what it has, and keeps its cache."""
    asyncio.run(_operators(which, options).drain(worker, role, leave=False))
    terminal().print(f"{worker} now takes {role.value}")


@with_options
def undrain_command(worker: WorkerArgument, options: DrainOptions, which: WhichCluster) -> None:
    """Put a drained worker back to work."""
    asyncio.run(_operators(which, options).undrain(worker))
    terminal().print(f"{worker} takes requests again")


def _operators(which: WhichCluster, options: DrainOptions) -> Operators:
    cluster = find_running(which)
    return Operators(cluster.endpoints, cluster.keys, options.timeout_s)
