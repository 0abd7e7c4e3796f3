"""`tandem keys`: what the processes of one cluster know each other by, for machines apart."""

from pathlib import Path
from typing import Annotated

import typer

from tandem.commands.cluster.key_files import write_fresh_keys
from tandem.commands.options import with_options


@with_options
def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where the two files go.")],
) -> None:
    """Make the keys of a cluster whose processes are started one by one.

    gateway.json is for `tandem gateway` alone, worker.json for `tandem join` and operators.
    """
    gateway, worker = write_fresh_keys(folder)
    typer.echo(f"{gateway}  for gateways\n{worker}  for workers and operators")
