"""`tandem drain`, `undrain` and `flip`: take a worker out of service, back in, or into another
role, while it goes on answering."""

import asyncio
from typing import Annotated

import typer

from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import terminal
from tandem.commands.which_cluster import WhichCluster, find_running
from tandem.facts.fleet import Role

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
    operators = find_running(which).operators(options.timeout_s)
    asyncio.run(operators.drain(worker, None, leaving.leave))
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
    operators = find_running(which).operators(options.timeout_s)
    asyncio.run(operators.drain(worker, role, leave=False))
    terminal().print(f"{worker} now takes {role.value}")


@with_options
def undrain_command(worker: WorkerArgument, options: DrainOptions, which: WhichCluster) -> None:
    """Put a drained worker back to work."""
    asyncio.run(find_running(which).operators(options.timeout_s).undrain(worker))
    terminal().print(f"{worker} takes requests again")
