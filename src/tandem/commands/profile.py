"""`tandem profile`: how long do this machine's steps take, and which few numbers say so?"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tandem.commands.flags import ConfigFile, with_flags
from tandem.commands.late_imports import part
from tandem.commands.serve import ModelArgument
from tandem.config.options import ServeOptions, read_options
from tandem.facts.errors import InvalidConfiguration

PANEL = "Profile"


@with_flags(ServeOptions)
def profile_command(
    model: ModelArgument = None,
    out: Annotated[
        Path,
        typer.Option(help="JSON file to write.", rich_help_panel=PANEL),
    ] = Path("profile.json"),
    chunks: Annotated[
        str, typer.Option(help="Prompt tokens of a step.", rich_help_panel=PANEL)
    ] = "16,64,256,512,1024,2048",
    batches: Annotated[
        str, typer.Option(help="Sequences of a decode step.", rich_help_panel=PANEL)
    ] = "1,2,4,8,16,32,64",
    contexts: Annotated[
        str, typer.Option(help="Tokens that a sequence has before.", rich_help_panel=PANEL)
    ] = "0,256,1024,2048",
    repeats: Annotated[
        int,
        typer.Option(min=1, help="Runs of each step; the median counts.", rich_help_panel=PANEL),
    ] = 5,
    config: ConfigFile = None,
    **flags: Any,
) -> None:
    """Time the engine's steps on this machine and fit a cost model to them.

    The simulated fleet reads the file as a worker's time model. Steps that do not fit into the
    context, the KV cache or a step's tokens are left out.
    """
    options = read_options(config, flags)
    profiling = part("profiling")
    grid = profiling.Grid(
        _counts("chunks", chunks, 2),
        _counts("batches", batches, 1),
        _counts("contexts", contexts, 0),
        repeats,
    )
    if not out.parent.is_dir():
        raise InvalidConfiguration(f"out: there is no directory {out.parent}; make it first")
    profiling.profile(model, options, grid, (out, Console(highlight=False)))


def _counts(name: str, text: str, least: int) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        raise InvalidConfiguration(
            f"{name} is {text!r}; expected whole numbers from {least} on, with commas between them"
        )
    return tuple(sorted({int(part) for part in parts}))
