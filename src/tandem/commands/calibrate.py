"""`tandem calibrate`: measures what serving costs on this machine, and writes it down for the
simulator and the routers."""

from enum import StrEnum
from pathlib import Path

from tandem.commands.late_imports import part
from tandem.commands.options import (
    ConfigFile,
    GivenOptions,
    ModelArgument,
    flag,
    flags,
    with_options,
)
from tandem.commands.terminal import terminal
from tandem.config.checkpoints import check_model
from tandem.config.options import read_options
from tandem.facts.errors import InvalidConfiguration


class Shape(StrEnum):
    """What is started to be measured."""

    AGGREGATED = "aggregated"
    DISAGGREGATED = "disaggregated"
    ENGINE = "engine"


@flags
class CalibrationOptions:
    """Calibration. What is measured, and where that goes."""

    out: Path = flag("JSON file to write.", default=Path("profile.json"))
    shape: Shape = flag(
        "A cluster of one worker, of one prefill and one decode worker, or the engine alone.",
        default=Shape.AGGREGATED,
    )
    datasheet: str = flag(
        "The worker's device: a bundled datasheet or the path of one.", default="cpu"
    )
    chunks: str = flag("Prompt tokens of a timed step.", default="16,64,256,1024")
    batches: str = flag("Sequences of a timed decode step.", default="1,4,16,64")
    contexts: str = flag("Tokens that a sequence has before.", default="0,512,2048")
    repeats: int = flag("Runs of each step; the median counts.", default=3, min=1)
    rounds: int = flag("Rounds of the load; medians count.", default=3, min=1)
    mixed_seconds: float = flag(
        "Seconds of each load of mixed requests, or 40 of them.", default=12.0, min=1.0
    )
    validate: bool = flag("Play a short load against server and simulator.", default=True)


@with_options
def calibrate_command(
    wanted: CalibrationOptions,
    given: GivenOptions,
    model: ModelArgument = None,
    config: ConfigFile = None,
) -> None:
    """Measure what serving costs on this machine: the engine's steps and everything around them.

    Times the engine, then starts a small cluster and asks it over HTTP as a client would. The file
    is a pool's time model (`time_model: {name: profile, path: ...}`) for the simulator and for a
    live gateway's predictions. In the end a load that was not used before is played against the
    server and in the simulator, and their difference is printed. Takes a minute or two.
    """
    options = read_options(config, given)
    if options.cascade_model:
        raise InvalidConfiguration(
            "cascade-model: models are calibrated one by one; leave it out, and name each as MODEL"
        )
    counts = (
        _counts("--chunks", wanted.chunks, 2),
        _counts("--batches", wanted.batches, 1),
        _counts("--contexts", wanted.contexts, 0),
    )
    if not wanted.out.parent.is_dir():
        raise InvalidConfiguration(
            f"--out: there is no directory {wanted.out.parent}; make it first"
        )
    check_model(model, options)
    calibration = part("calibration")
    grid = calibration.Grid(*counts, wanted.repeats)
    plan = calibration.CalibrationPlan(
        model=model,
        options=options,
        roles=ROLES[wanted.shape],
        datasheet=wanted.datasheet,
        grid=grid,
        rounds=wanted.rounds,
        mixed_s=wanted.mixed_seconds,
        validates=wanted.validate,
    )
    calibration.calibrate(plan, wanted.out, terminal())


# The workers of each shape, by role.
ROLES = {
    Shape.AGGREGATED: ("both",),
    Shape.DISAGGREGATED: ("prefill", "decode"),
    Shape.ENGINE: (),
}


def _counts(flag_name: str, text: str, least: int) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        raise InvalidConfiguration(
            f"{flag_name} is {text!r}; expected whole numbers from {least} on, with commas between"
        )
    return tuple(sorted({int(part) for part in parts}))
