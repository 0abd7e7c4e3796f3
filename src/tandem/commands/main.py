"""The `tandem` command: one verb a file."""

import typer

from tandem import __version__
from tandem.commands.bench import bench
from tandem.commands.chat import chat
from tandem.commands.complete import complete
from tandem.commands.down import down_command
from tandem.commands.drain import drain_command, flip_command, undrain_command
from tandem.commands.evaluate import evaluate_command
from tandem.commands.gateway import gateway_command
from tandem.commands.hits import hits
from tandem.commands.join import join_command
from tandem.commands.keys import keys_command
from tandem.commands.processes import (
    gateway_process_command,
    pool_process_command,
    worker_process_command,
)
from tandem.commands.profile import profile_command
from tandem.commands.restart import restart_command
from tandem.commands.serve import serve_command
from tandem.commands.simulate import simulate_command
from tandem.commands.status import status_command
from tandem.commands.up import up_command

app = typer.Typer(
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


app.command("serve")(serve_command)
app.command("up")(up_command)
app.command("status")(status_command)
app.command("drain")(drain_command)
app.command("undrain")(undrain_command)
app.command("flip")(flip_command)
app.command("restart")(restart_command)
app.command("join")(join_command)
app.command("down")(down_command)
app.command("gateway")(gateway_command)
app.command("keys")(keys_command)
app.command("chat")(chat)
app.command("complete")(complete)
app.command("bench")(bench)
app.command("eval")(evaluate_command)
app.command("hits")(hits)
app.command("profile")(profile_command)
app.command("simulate")(simulate_command)
app.command("gateway-process", hidden=True)(gateway_process_command)
app.command("worker-process", hidden=True)(worker_process_command)
app.command("pool-process", hidden=True)(pool_process_command)
