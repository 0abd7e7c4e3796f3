"""`tandem keys`: what the processes of one cluster know each other by, for machines apart."""

from pathlib import Path
from typing import Annotated

import typer

from tandem.commands.options import with_options
from tandem.live.processes.key_files import add_worker_keys, write_fresh_keys


@with_options
def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where the files go.")],
    worker: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            help="One more worker's keys beside those that are there, by this name; repeat.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make the keys of a cluster whose processes are started one by one.

    gateway.json is for `tandem gateway`, worker.json for `tandem join`. Who may come in stands in
    `admitted`, which belongs beside gateway.json: a line that is deleted there is a key that is
    revoked.
    """
    if worker:
        for name in worker:
            typer.echo(f"{add_worker_keys(folder, name)}  for that worker")
        return
    gateway, joins, admitted = write_fresh_keys(folder)
    typer.echo(
        f"{gateway}  for gateways\n{joins}  for workers\n"
        f"{admitted}  who may come in; belongs beside gateway.json"
    )
