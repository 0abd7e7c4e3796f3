"""`tandem profile`: times the steps of this machine and fits a step-time model to them."""

from pathlib import Path

from rich.console import Console

from tandem.commands.late_imports import part
from tandem.commands.options import (
    ConfigFile,
    GivenOptions,
    ModelArgument,
    flag,
    flags,
    with_options,
)
from tandem.config.options import read_options
from tandem.facts.errors import InvalidConfiguration


@flags
class ProfileOptions:
    """Profile. Which steps are timed, and where that goes."""

    out: Path = flag("JSON file to write.", default=Path("profile.json"))
    chunks: str = flag("Prompt tokens of a step.", default="16,64,256,512,1024,2048")
    batches: str = flag("Sequences of a decode step.", default="1,2,4,8,16,32,64")
    contexts: str = flag("Tokens that a sequence has before.", default="0,256,1024,2048")
    repeats: int = flag("Runs of each step; the median counts.", default=5, min=1)


@with_options
def profile_command(
    wanted: ProfileOptions,
    given: GivenOptions,
    model: ModelArgument = None,
    config: ConfigFile = None,
) -> None:
    """Time the engine's steps on this machine and fit a cost model to them.

    The simulated fleet reads the file as a worker's time model. Steps that do not fit into the
    context, the KV cache or a step's tokens are left out.
    """
    options = read_options(config, given)
    profiling = part("profiling")
    grid = profiling.Grid(
        _counts("chunks", wanted.chunks, 2),
        _counts("batches", wanted.batches, 1),
        _counts("contexts", wanted.contexts, 0),
        wanted.repeats,
    )
    out = wanted.out
    if not out.parent.is_dir():
        raise InvalidConfiguration(f"out: there is no directory {out.parent}; make it first")
    profiling.profile(model, options, grid, out, Console(highlight=False))


def _counts(name: str, text: str, least: int) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        raise InvalidConfiguration(
            f"{name} is {text!r}; expected whole numbers from {least} on, with commas between them"
        )
    return tuple(sorted({int(part) for part in parts}))
