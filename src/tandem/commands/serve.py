"""`tandem serve`: one model behind the OpenAI API, in this process."""

import importlib
import logging
from typing import Annotated, Any

import typer
from rich.console import Console

from tandem.commands.flags import ConfigFile, with_flags
from tandem.config.options import ServeOptions, read_options

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="Directory of a checkpoint, or a name on the Hugging Face hub. "
        "Without one, the small bundled model is served.",
        show_default=False,
    ),
]


@with_flags(ServeOptions)
def serve_command(model: ModelArgument = None, config: ConfigFile = None, **flags: Any) -> None:
    """Serve a model behind an OpenAI-compatible API.

    Every option may also stand in a YAML file under its own name (--config FILE); a flag wins.
    """
    options = read_options(config, flags)
    logging.basicConfig(level=options.log_level.upper())
    console = Console(highlight=False)
    console.print(f"[bold]Tandem[/bold] is loading {model or 'the bundled model'} …")
    # torch takes seconds to import; the other commands should not wait for it.
    importlib.import_module("tandem.commands.serving").serve(model, options, console)
