"""The simulator beside our own server on this machine, on the same arrivals: `tandem-mini` and a
model of random weights, one worker and a prefill with a decode worker, below, at and past the rate
that they can do. Each is calibrated first, on other loads; each load is played live several times,
so that the machine's own noise stands beside the simulator's error. The last two columns are the
simulator with all steps as much longer or shorter as they were live meanwhile: the error that is
left is not of the machine's speed.

Usage: python bench/twin_vs_live.py [--model mini,dummy] [--shape aggregated,disaggregated]
                                    [--shares 0.4,0.9,1.3] [--seconds 12] [--repeats 4] [--folder F]
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from tandem.commands.calibrate import ROLES, Shape
from tandem.commands.calibration import CalibrationPlan, ask, compared, drawn_load, play
from tandem.commands.calibration_fit import ProfileFit, SimulatedServer, write_profile
from tandem.commands.engine_grid import Grid, engine_record, time_engine
from tandem.commands.measured_cluster import MeasuredCluster, cluster_text, running
from tandem.config.environment import BUNDLED_MODEL
from tandem.config.options import ServeOptions
from tandem.report.record import RequestOutcome

GRID = Grid((16, 64, 256, 1024), (1, 4, 16, 64), (0, 512, 2048), 3)
# About 27 million parameters.
DUMMY = {
    "num_hidden_layers": 6,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}


@dataclass(frozen=True)
class Subject:
    """A model in a shape of cluster."""

    name: str
    plan: CalibrationPlan
    text: str
    directory: Path


@dataclass(frozen=True)
class Wishes:
    """What is played: at `shares` of what the workers can do, for so long, so often."""

    shares: Sequence[float]
    seconds: float
    repeats: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mini,dummy")
    parser.add_argument("--shape", default="aggregated,disaggregated")
    parser.add_argument("--shares", default="0.4,0.9,1.3", help="of the rate that they can do")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each load")
    parser.add_argument("--repeats", type=int, default=4, help="of each load, live")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--folder", type=Path, help="keeps the profiles and the records here")
    wishes = parser.parse_args()
    shares = [float(part) for part in wishes.shares.split(",")]
    loads = Wishes(shares, wishes.seconds, wishes.repeats)
    with TemporaryDirectory() as passing:
        folder = wishes.folder or Path(passing)
        for model in wishes.model.split(","):
            for shape in wishes.shape.split(","):
                place = folder / f"{model}-{shape}"
                place.mkdir(parents=True, exist_ok=True)
                subject = _subject(model, Shape(shape), wishes.threads, place)
                _compare(subject, loads, place)


def dummy_model(folder: Path) -> Path:
    """The bundled model's folder with another shape and no weights."""
    directory = folder / "dummy"
    directory.mkdir(exist_ok=True)
    for file in BUNDLED_MODEL.iterdir():
        if file.suffix != ".safetensors":
            (directory / file.name).write_bytes(file.read_bytes())
    config = json.loads((BUNDLED_MODEL / "config.json").read_text()) | DUMMY
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _subject(model: str, shape: Shape, threads: int, folder: Path) -> Subject:
    dummy = model == "dummy"
    directory = dummy_model(folder) if dummy else BUNDLED_MODEL
    options = ServeOptions(
        threads=threads, kv_cache_memory="512MiB", load_format="dummy" if dummy else "auto"
    )
    plan = CalibrationPlan(
        str(directory), options, ROLES[shape], "cpu", GRID, rounds=3, validates=False
    )
    text = cluster_text(str(directory), plan.roles, options, plan.datasheet)
    return Subject(f"{model}, {shape}", plan, text, directory)


def _compare(subject: Subject, wishes: Wishes, folder: Path) -> None:
    quiet = Console(quiet=True)
    plan = subject.plan
    engine, _ = time_engine(subject.directory, plan.options, plan.grid, quiet)
    profile = folder / "profile.json"
    server = SimulatedServer(subject.text, folder)
    with running(subject.text, folder) as cluster:
        seen = asyncio.run(ask(cluster, server, engine, plan.rounds))
        record = ProfileFit(server, engine, engine_record(engine), seen).fit()
        write_profile(profile, record)
        cost = server.cost(profile)
        most_rps = server.capacity_rps(cost.step_time, cost.serving)
        print(f"\n{subject.name}: can do about {most_rps:.1f} requests a second")
        print(json.dumps({name: record.get(name) for name in ("serving", "kv_transfer")}))
        for number, share in enumerate(wishes.shares):
            _at_rate(server, cluster, profile, share, share * most_rps, wishes, number)


def _at_rate(
    server: SimulatedServer,
    cluster: MeasuredCluster,
    profile: Path,
    share: float,
    rate_rps: float,
    wishes: Wishes,
    number: int,
) -> None:
    """All repeats together, as if they were one run."""
    load = drawn_load(rate_rps, wishes.seconds, server.lengths, seed=100 + number)
    points = range(wishes.repeats * number, wishes.repeats * (number + 1))
    live = [asyncio.run(play(cluster, server, load, point)) for point in points]
    twin: list[Sequence[RequestOutcome]] = []
    adjusted: list[Sequence[RequestOutcome]] = []
    longer: list[float] = []
    for each in live:
        twin.append(server.play(each.records, profile)[0])
        at_speed, times = server.at_speed_of(each.steps, profile)
        adjusted.append(server.play(each.records, at_speed)[0])
        longer.append(times)
    runs = [list(each.records) for each in live]
    steps = ", ".join(f"{times - 1:+.1%}" for times in longer)
    print(f"{share:g} x: {rate_rps:.1f}/s, {len(load)} requests; steps took {steps}")
    _show(runs, twin, adjusted)
    rows = [[[_figures(each) for each in run] for run in side] for side in (runs, twin, adjusted)]
    (profile.parent / f"load-{number}.json").write_text(json.dumps(rows))


def _figures(each: RequestOutcome) -> tuple[int, ...]:
    instants_ns = each.arrival_ns, each.first_token_ns, each.last_token_ns
    return (*instants_ns, each.prompt_tokens, each.emitted_tokens)


def _show(
    live: Sequence[Sequence[RequestOutcome]],
    twin: Sequence[Sequence[RequestOutcome]],
    adjusted: Sequence[Sequence[RequestOutcome]],
) -> None:
    """The live figure, the least and the largest of its repeats, and the simulator's error: as
    calibrated, and with steps as quick as they were in each repeat."""
    pooled = [list(chain.from_iterable(runs)) for runs in (live, twin, adjusted)]
    ours, at_speed = compared(pooled[0], pooled[1]), compared(pooled[0], pooled[2])
    alone = [compared(each, each) for each in live]
    print(f"{'':<12}{'live':>9}{'repeats':>19}{'twin':>9}{'error':>9}{'at speed':>10}{'error':>9}")
    for row, (name, figure, live_ms, twin_ms) in enumerate(ours):
        spread = [each[row][2] for each in alone]
        adjusted_ms = at_speed[row][3]
        print(
            f"{name + ' ' + figure:<12}{live_ms:>9.2f}{min(spread):>10.2f}{max(spread):>9.2f}"
            f"{twin_ms:>9.2f}{twin_ms / live_ms - 1:>+9.1%}"
            f"{adjusted_ms:>10.2f}{adjusted_ms / live_ms - 1:>+9.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
