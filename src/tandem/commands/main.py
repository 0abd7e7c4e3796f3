"""The `tandem` command: one verb a file, imported when it is asked for.

Some verbs import what takes a second, and none should wait for what only another one needs.
"""

from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperGroup

from tandem import __version__
from tandem.commands.heavy_imports import import_heavy
from tandem.live.process_end import run_to_the_end

# Where each verb is found, in the order in which the help lists them.
VERBS = {
    "serve": "serve:serve_command",
    "up": "up:up_command",
    "status": "status:status_command",
    "drain": "drain:drain_command",
    "undrain": "drain:undrain_command",
    "flip": "drain:flip_command",
    "restart": "restart:restart_command",
    "join": "join:join_command",
    "down": "down:down_command",
    "gateway": "gateway:gateway_command",
    "keys": "keys:keys_command",
    "chat": "chat:chat",
    "complete": "complete:complete",
    "bench": "bench:bench",
    "eval": "evaluate:evaluate_command",
    "hits": "hits:hits",
    "profile": "profile:profile_command",
    "simulate": "simulate:simulate_command",
    "gateway-process": "processes:gateway_process_command",
    "worker-process": "processes:worker_process_command",
    "pool-process": "processes:pool_process_command",
}
# Started by other verbs, not by people.
HIDDEN = {"gateway-process", "worker-process", "pool-process"}


class Verbs(TyperGroup):
    """The verbs; each is imported when it is asked for by name."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._import(VERBS)
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # Whoever mistyped one is told which there are.
        self._import((cmd_name,) if cmd_name in VERBS else VERBS)
        return super().get_command(ctx, cmd_name)

    def _import(self, verbs: Iterable[str]) -> None:
        for verb in verbs:
            if verb not in self.commands:
                self.commands[verb] = _imported(verb)


def _imported(verb: str) -> Any:
    module, _, name = VERBS[verb].partition(":")
    command = getattr(import_heavy(f"tandem.commands.{module}"), name)
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    alone.command(verb, hidden=verb in HIDDEN)(command)
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
