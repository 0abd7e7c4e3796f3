"""How a command declares its flags: as dataclasses, so that forty flags need no forty parameters.

`with_options` spreads the fields of a command's dataclass parameters into flags for typer and puts
the values together again; mistakes become one line (`in_one_line`).
"""

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, cast, get_args, get_type_hints

import typer

from tandem.commands.reporting import in_one_line

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class ServerOptions:
    """Which server to talk to."""

    url: Annotated[
        str, typer.Option("--url", "--base-url", help="Server address, with or without /v1.")
    ] = DEFAULT_URL
    model: Annotated[
        str | None, typer.Option(help="Served model name. (default: the server's first)")
    ] = None
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as bearer token.")
    ] = None
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", min=0.001, help="Longest wait for a whole answer.")
    ] = 600.0


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every field of its dataclass parameters, and of dataclasses within them, as
    a flag of its own. Two fields of one name raise `ValueError` on import."""
    hints = get_type_hints(command, include_extras=True)
    reporting = in_one_line(command)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        reporting(**{name: _gathered(name, hint, values) for name, hint in taken.items()})

    parameters: list[inspect.Parameter] = []
    signature = inspect.signature(command).parameters
    taken = {name: hints[name] for name in signature}
    for name, parameter in signature.items():
        if is_dataclass(hints[name]):
            parameters += _flags(hints[name])
        else:
            parameters.append(
                parameter.replace(
                    annotation=hints[name],
                    # Only keywords may mix those with and those without a default.
                    kind=inspect.Parameter.KEYWORD_ONLY,
                )
            )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {entry.name: entry.annotation for entry in parameters}
    return run


def _gathered(name: str, hint: Any, values: dict[str, Any]) -> Any:
    """The argument of one parameter or field, put together from the flags' values."""
    if not is_dataclass(hint):
        return values[name]
    hints = get_type_hints(hint, include_extras=True)
    parts = {field.name: _gathered(field.name, hints[field.name], values) for field in fields(hint)}
    return cast(type, hint)(**parts)


def _flags(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    flags: list[inspect.Parameter] = []
    for field in fields(group):
        hint = hints[field.name]
        if is_dataclass(hint):
            flags += _flags(hint)
            continue
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        annotation = _in_panel(hint, _title(group))
        flags.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )
    return flags


def _in_panel(hint: Any, title: str) -> Any:
    """The annotation with its option moved into a panel of the help."""
    kind, option = get_args(hint)
    option = copy.copy(option)
    option.rich_help_panel = title
    return Annotated[kind, option]


def _title(group: Any) -> str:
    """The first sentence of the dataclass's docstring heads the panel of its flags."""
    return str(inspect.getdoc(group)).partition(".")[0].replace("\n", " ")
