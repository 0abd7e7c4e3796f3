"""Turns the user's mistakes into one line and an exit code, for every command alike."""

import functools
from collections.abc import Callable

import typer

from tandem.facts.errors import InvalidConfiguration, InvalidRequest, TandemError


def in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """A `TandemError` of the command becomes one line on stderr and exit code 2 for a bad value,
    1 for everything else."""

    @functools.wraps(command)
    def run(**values: object) -> None:
        try:
            command(**values)
        except TandemError as error:
            typer.echo(f"tandem: {error}", err=True)
            misused = isinstance(error, InvalidConfiguration | InvalidRequest)
            raise typer.Exit(2 if misused else 1) from error

    return run
