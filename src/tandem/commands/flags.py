"""Makes command-line flags of an options struct, so that flags and YAML keys are one table."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import typer

from tandem.commands.reporting import in_one_line


def with_flags(options: type[msgspec.Struct]) -> Callable[[Callable[..., None]], Any]:
    """Decorator: the command takes each field of `options` as a flag, and gets those that the user
    gave as keyword arguments. Defaults are shown in the help but come from the struct."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())
        own = [p for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD]
        flags = [_flag(options, field) for field in msgspec.structs.fields(options)]

        def wrapper(**values: object) -> None:
            # An option not given is None (or an empty list), and stays out of the way of the file.
            given = {name: value for name, value in values.items() if value not in (None, [])}
            in_one_line(command)(**{p.name: values[p.name] for p in own}, **_without(given, own))

        wrapper.__name__ = command.__name__
        wrapper.__doc__ = command.__doc__
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + flags
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _without(given: dict[str, object], own: list[inspect.Parameter]) -> dict[str, object]:
    names = {parameter.name for parameter in own}
    return {name: value for name, value in given.items() if name not in names}


def _flag(options: type[msgspec.Struct], field: msgspec.structs.FieldInfo) -> inspect.Parameter:
    hint = get_type_hints(options, include_extras=True)[field.name]
    kind, *metas = get_args(hint)
    said = next(meta for meta in metas if getattr(meta, "description", None))
    many = getattr(kind, "__origin__", None) is tuple
    choices = get_args(kind) if not many and not isinstance(kind, type) else ()
    shown = "" if many else str(field.default).lower() if kind is bool else str(field.default)
    text = said.description + (f" \\[{'|'.join(choices)}]" if choices else "")
    name = field.encode_name
    flag = typer.Option(
        f"--{name}/--no-{name}" if kind is bool else f"--{name}",
        help=f"{text} [dim]({shown})[/dim]" if shown else text,
        rich_help_panel=said.extra["panel"],
        show_default=False,
    )
    base: Any = list[str] if many else str if choices else kind
    annotation = Annotated[base | None, flag]
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="YAML file with any of these options.", show_default=False),
]
