"""`tandem merge`: one checkpoint of a model and a LoRA adapter, which needs no adapter to serve."""

from pathlib import Path
from typing import Annotated

import typer

from tandem.commands.late_imports import part
from tandem.commands.options import with_options
from tandem.commands.terminal import terminal
from tandem.config.checkpoints import find_checkpoint
from tandem.config.options import ServeOptions


@with_options
def merge_command(
    model: Annotated[
        str, typer.Argument(help="Folder of the model, or its name (bundled, or on the hub).")
    ],
    adapter: Annotated[Path, typer.Argument(help="Folder of the adapter, as PEFT writes it.")],
    out: Annotated[Path, typer.Argument(help="Folder that is made.")],
) -> None:
    """Write a model and a LoRA adapter as one checkpoint.

    Its answers are those of the adapter beside the model, up to rounding: merged weights are stored
    in the precision of the model's.
    """
    directory = find_checkpoint(model, ServeOptions().revision)
    matrices = part("merging").merge_adapter(directory, adapter.expanduser(), out.expanduser())
    terminal().print(f"{matrices} matrices merged; tandem serve {out}", soft_wrap=True)
