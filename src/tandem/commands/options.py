"""How a command declares its flags: as dataclasses, so that forty flags need no forty parameters.

`with_options` spreads the fields of a command's dataclass parameters into flags for typer, and
turns a `TandemError` into one line and an exit code: 2 for a bad value, 1 for everything else.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from tandem.facts.errors import InvalidConfiguration, InvalidRequest, TandemError

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class ServerOptions:
    """Which server to talk to."""

    url: Annotated[
        str, typer.Option("--url", "--base-url", help="Server address, with or without /v1.")
    ] = DEFAULT_URL
    model: Annotated[
        str | None, typer.Option(help="Served model name. [default: the server's first]")
    ] = None
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as bearer token.")
    ] = None
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", min=0.001, help="Longest wait for a whole answer.")
    ] = 600.0


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every field of its dataclass parameters as a flag of its own."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    signature = inspect.signature(command)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        arguments = dict(values)
        for name, group in groups.items():
            arguments[name] = group(
                **{field.name: arguments.pop(field.name) for field in fields(group)}
            )
        try:
            command(**arguments)
        except TandemError as error:
            typer.echo(f"tandem: {error}", err=True)
            misused = isinstance(error, InvalidConfiguration | InvalidRequest)
            raise typer.Exit(2 if misused else 1) from error

    parameters = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            parameters += [_flag(field, groups[name]) for field in fields(groups[name])]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))
    # Flags carry defaults, so any order of the groups is fine only when all are by keyword.
    by_name = [entry.replace(kind=inspect.Parameter.KEYWORD_ONLY) for entry in parameters]
    run.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    run.__annotations__ = {entry.name: entry.annotation for entry in by_name}
    return run


def _flag(field: Field[Any], group: Any) -> inspect.Parameter:
    default = field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    if default is MISSING:
        default = inspect.Parameter.empty
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=get_type_hints(group, include_extras=True)[field.name],
    )
