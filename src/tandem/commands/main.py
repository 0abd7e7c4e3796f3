"""The `tandem` command: one verb a file, imported when it is asked for (`late_imports`)."""

from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tandem import __version__
from tandem.commands.late_imports import FORMER_VERBS, VERBS, verb
from tandem.live.processes.lifecycle import run_to_the_end

# Take several words of the form name=value (or JSON objects), where others take one.
_OF_SEVERAL = ("--lora-modules", "--encoder-models")


class Verb(TyperCommand):
    """One verb. What follows `--lora-modules` up to the next option are its values, as in vLLM; and
    so with `--encoder-models`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _spread(args))


def _spread(words: list[str]) -> list[str]:
    """With the option before each of its values."""
    spread: list[str] = []
    option = ""
    for word in words:
        if word.startswith("-"):
            option = word if word in _OF_SEVERAL else ""
        elif option and spread[-1] != option:
            if "=" in word or word.startswith("{"):
                spread.append(option)
            else:
                option = ""
        spread.append(word)
    return spread


class Verbs(TyperGroup):
    """The verbs; each is imported when it is asked for by name."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._import(VERBS)
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in FORMER_VERBS:
            raise typer.BadParameter(FORMER_VERBS[cmd_name], ctx)
        # Whoever mistyped one is told which there are.
        self._import((cmd_name,) if cmd_name in VERBS else VERBS)
        return super().get_command(ctx, cmd_name)

    def _import(self, verbs: Iterable[str]) -> None:
        for name in verbs:
            if name not in self.commands:
                self.commands[name] = _command(name)


def _command(name: str) -> Any:
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    alone.command(name, cls=Verb)(verb(name))
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=Verbs,
    name="tandem",
    help="Serve, try and measure large language models: on a laptop with one command, or on a "
    "cluster of workers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tandem {__version__}")
        raise typer.Exit


@app.callback()
def tandem(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """The options that belong to no verb."""


def run() -> None:
    """Run the verb that the words name, and end the process."""
    run_to_the_end(app)
