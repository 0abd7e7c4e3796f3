"""How verbs declare their flags, groups of flags that several verbs have, and what becomes of a
user's mistakes.

Flags are fields of dataclasses, or of a struct of options whose fields are keys of a YAML file as
well. `with_options` spreads them into flags for typer and puts the values together again.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import typer

from tandem.commands.option_names import in_keys, in_options_of
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration, InvalidRequest, TandemError

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8000"
_SERVERS = "(default: the server's)"

# Those options of `tandem serve` that the user gave, by name; defaults come from elsewhere.
GivenOptions = Annotated[Mapping[str, object], ServeOptions]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="Directory of a checkpoint, a GGUF file, a name on the Hugging Face hub, or that of "
        "a bundled model (tandem-mini, tandem-mini-draft). Without one, tandem-mini.",
        show_default=False,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="YAML file with any of these options.", show_default=False),
]


def flag(text: str, *names: str, default: Any = MISSING, **rules: Any) -> Any:
    """A field of a group of flags: its help, its names where they are others than its own with `--`
    before it, its value where it is not given, and whatever else `typer.Option` takes."""
    return field(default=default, metadata={"option": typer.Option(*names, help=text, **rules)})


def settings_flag(example: str) -> Any:
    """The flag `--set`: a key of a cluster file and its value."""
    return flag(f"Changes the cluster file, as {example}.", "--set", default=None)


@dataclass_transform(frozen_default=True, field_specifiers=(flag, field))
def flags(group: type[T]) -> type[T]:
    """A group of flags: a frozen dataclass, whose docstring begins with its title in the help."""
    return dataclass(frozen=True)(group)


@flags
class ServerOptions:
    """Which server to talk to."""

    url: str = flag(
        "Server address, with or without /v1.", "--url", "--base-url", default=DEFAULT_URL
    )
    model: str | None = flag("Served model name. (default: the server's first)", default=None)
    api_key: str | None = flag(
        "Sent as bearer token.", default=None, envvar=["TANDEM_API_KEY", "OPENAI_API_KEY"]
    )
    timeout_s: float = flag("Longest wait for a whole answer.", default=600.0, min=0.001)


@flags
class SamplingOptions:
    """How the answer is drawn. What is not given is not sent: the server's own default holds."""

    max_tokens: int | None = flag(f"Longest answer. {_SERVERS}", default=None, min=1)
    temperature: float | None = flag(f"0 is greedy. {_SERVERS}", default=None, min=0.0)
    top_p: float | None = flag(f"Nucleus. {_SERVERS}", default=None, min=0.0, max=1.0)
    seed: int | None = flag(
        "Same seed, same answer. (default: a new one each)", default=None, min=0
    )

    def fields(self) -> dict[str, Any]:
        """The body's fields."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def positive_numbers(text: str, flag: str, example: str) -> list[float]:
    """A number greater than 0, or a list of them with commas. Raises `InvalidConfiguration`."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(number > 0 for number in numbers):
        raise InvalidConfiguration(
            f"{flag} must be a number greater than 0 or a list as {example}, got {text!r}"
        )
    return numbers


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every field of its dataclass parameters, of dataclasses within them, and of
    the struct of a parameter like `GivenOptions`, as a flag of its own. Two fields of one name
    raise `ValueError` on import. A `TandemError` of the command becomes one line on stderr and exit
    code 2 for a bad value, 1 for everything else."""
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command).parameters
    takes_options = any(_struct(hints[name]) for name in signature)

    def said(error: TandemError, values: Mapping[str, Any]) -> str:
        if not isinstance(error, InvalidConfiguration):
            # What a server said stays as it is.
            return str(error)
        if not takes_options:
            return in_keys(str(error), own_flags)
        given = [name.replace("_", "-") for name in values if values[name] not in (None, [])]
        return in_options_of(str(error), values.get("config"), given)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        try:
            command(**{name: _gathered(name, hints[name], values) for name in signature})
        except TandemError as error:
            typer.echo(f"tandem: {said(error, values)}", err=True)
            misused = isinstance(error, InvalidConfiguration | InvalidRequest)
            raise typer.Exit(2 if misused else 1) from error

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.items():
        if is_dataclass(hints[name]):
            parameters += _flags(hints[name])
        elif struct := _struct(hints[name]):
            parameters += _flags_of_struct(struct)
        else:
            parameters.append(_keyword(name, hints[name], parameter.default))
    own_flags = frozenset(flag for entry in parameters for flag in _names(entry))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {entry.name: entry.annotation for entry in parameters}
    return run


def _gathered(name: str, hint: Any, values: dict[str, Any]) -> Any:
    """The argument of one parameter or field, put together from the flags' values."""
    if struct := _struct(hint):
        # An option that was not given is None (or an empty list).
        given = {each.name: values[each.name] for each in msgspec.structs.fields(struct)}
        return {each: value for each, value in given.items() if value not in (None, [])}
    if not is_dataclass(hint):
        return values[name]
    hints = get_type_hints(hint, include_extras=True)
    parts = {entry.name: _gathered(entry.name, hints[entry.name], values) for entry in fields(hint)}
    return cast(type, hint)(**parts)


def _keyword(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """Only keywords may mix those with and those without a default."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _flags(group: Any) -> Iterator[inspect.Parameter]:
    """Of the fields of a dataclass, in a panel of the help that is called as the first sentence of
    its docstring."""
    hints = get_type_hints(group, include_extras=True)
    title = str(inspect.getdoc(group)).partition(".")[0].replace("\n", " ")
    for entry in fields(group):
        if is_dataclass(hints[entry.name]):
            yield from _flags(hints[entry.name])
            continue
        option = copy.copy(entry.metadata["option"])
        option.rich_help_panel = title
        default = inspect.Parameter.empty if entry.default is MISSING else entry.default
        yield _keyword(entry.name, Annotated[hints[entry.name], option], default)


def _names(parameter: inspect.Parameter) -> list[str]:
    """Of a flag, as they are typed."""
    rules = get_args(parameter.annotation)[1:]
    named = [name for rule in rules for name in getattr(rule, "param_decls", None) or ()]
    given = [part for name in named for part in name.split("/")]
    return given or [f"--{parameter.name.replace('_', '-')}"]


def _struct(hint: Any) -> type[msgspec.Struct] | None:
    """The struct whose options a parameter takes, if it takes those of one."""
    rule = get_args(hint)[1] if get_origin(hint) is Annotated else None
    return rule if isinstance(rule, type) and issubclass(rule, msgspec.Struct) else None


def _flags_of_struct(struct: type[msgspec.Struct]) -> Iterator[inspect.Parameter]:
    """Without defaults of their own, which the help shows all the same."""
    for entry in msgspec.structs.fields(struct):
        kind, *metas = get_args(entry.type)
        described = next(meta for meta in metas if getattr(meta, "description", None))
        many = get_origin(kind) is tuple
        choices = get_args(kind) if not many and not isinstance(kind, type) else ()
        shown = "" if many else str(entry.default).lower() if kind is bool else str(entry.default)
        text = described.description + (f" \\[{'|'.join(choices)}]" if choices else "")
        name = entry.encode_name
        flag = typer.Option(
            f"--{name}/--no-{name}" if kind is bool else f"--{name}",
            help=f"{text} [dim]({shown})[/dim]" if shown else text,
            rich_help_panel=described.extra["panel"],
            show_default=False,
        )
        base: Any = list[str] if many else str if choices else kind
        yield _keyword(entry.name, Annotated[base | None, flag], None)
