"""A whole calibration: times the engine, asks a small cluster over HTTP, fits what serving costs,
writes the profile, and compares server and simulator on a load that was not used before."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

import tandem
from tandem.bench.client import Client, Endpoint
from tandem.bench.laws import Arrivals, LengthLaw
from tandem.bench.load import Asking
from tandem.bench.workload import Conversation, Synthetic, arrive, plan_synthetic
from tandem.commands.calibration_fit import (
    LoadLengths,
    ProfileFit,
    SimulatedServer,
    served_alone,
    write_profile,
)
from tandem.commands.calibration_load import (
    LEAST_CONTEXT_TOKENS,
    CalibrationLoad,
    LoadLimits,
    MeasuredLoad,
    Seen,
)
from tandem.commands.engine_grid import Grid, TimedEngine, engine_record, time_engine
from tandem.commands.measured_cluster import MeasuredCluster, cluster_text, running
from tandem.commands.terminal import plain_table, print_warning
from tandem.config.checkpoints import find_checkpoint
from tandem.config.environment import BUNDLED_MODEL, host_facts
from tandem.config.hardware.worker import load_device
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.report.record import RequestOutcome
from tandem.report.statistics import Distribution, distribution, tpots_ns, ttfts_ns

# The load of the comparison: a share of what the server can do, for so long, after another seed.
VALIDATION_SHARE = 0.5
VALIDATION_S = 15.0
LEAST_REQUESTS = 40
# Above this the figures are more of what else ran than of the server.
MOST_NOISE = 0.25
VALIDATION_SEED = 7
# The mixed loads, by shares of that; with other requests than any comparison has.
MIXED_SHARES = (0.3, 0.7)
MIXED_S = 12.0
MIXED_SEED = 70

__all__ = ["CalibrationPlan", "Grid", "calibrate"]

# (metric, figure, live ms, simulated ms)
Compared = Sequence[tuple[str, str, float, float]]


@dataclass(frozen=True)
class CalibrationPlan:
    """What to measure: `roles` are the workers of the cluster, of which there may be none. Mixed
    loads last about `mixed_s` each."""

    model: str | None
    options: ServeOptions
    roles: tuple[str, ...]
    datasheet: str
    grid: Grid
    rounds: int
    validates: bool
    mixed_s: float = MIXED_S


def calibrate(plan: CalibrationPlan, path: Path, console: Console) -> None:
    """Measure, show, write. Raises `InvalidConfiguration`, or what a request failed with."""
    directory = find_checkpoint(plan.model, plan.options.revision)
    options = on_this_machine(plan)
    engine, resolved = time_engine(directory, options, plan.grid, console)
    record = engine_record(engine)
    record["setup"] = {
        "tandem": tandem.__version__,
        "model": BUNDLED_MODEL.name if plan.model is None else plan.model,
        "device": resolved.device.type,
        "threads": resolved.threads,
        "storage": resolved.weights,
        "repeats": plan.grid.repeats,
        "workers": list(plan.roles),
    }
    error = record["error"]
    console.print(
        f"error of the fit: median {error['median_percent']:.1f} %, "
        f"p90 {error['p90_percent']:.1f} %"
    )
    if not plan.roles:
        write_profile(path, record)
        console.print(f"written to {path}", soft_wrap=True)
        return
    text = cluster_text(str(directory), plan.roles, options, plan.datasheet)
    console.print(f"starting a cluster: {' + '.join(plan.roles)} …")
    with TemporaryDirectory(prefix="tandem-calibrate-") as passing:
        folder = Path(passing)
        server = SimulatedServer(text, folder)
        with running(text, folder) as cluster:
            with console.status("asking it …") as status:
                asked = ask(cluster, server, engine, plan.rounds, status.update, plan.mixed_s)
                seen = asyncio.run(asked)
            record = ProfileFit(server, engine, record, seen).fit()
            write_profile(path, record)
            console.print(_serving_table(record))
            print_warning(console, _noise_warning(seen.noise()))
            console.print(f"written to {path}", soft_wrap=True)
            if plan.validates:
                load = validation_load(server, path)
                with console.status(f"comparing {len(load)} requests in {VALIDATION_S:.0f} s …"):
                    live = asyncio.run(play(cluster, server, load, 0))
                found = compared(live.records, server.play(live.records, path)[0])
                at_speed, longer = server.at_speed_of(live.steps, path)
                adjusted = compared(live.records, server.play(live.records, at_speed)[0])
                validation = validation_record(found, adjusted, longer)
                write_profile(path, record | {"validation": validation})
                console.print(_comparison_table(found, adjusted, longer))


def on_this_machine(plan: CalibrationPlan) -> ServeOptions:
    """The engine is timed on the device that the cluster's workers have, and each of them has its
    share of the cores, unless the user says how many. Raises `InvalidConfiguration`."""
    options, workers = plan.options, len(plan.roles)
    if not workers:
        return options
    device = "cpu" if load_device(plan.datasheet).name == "cpu" else "cuda"
    if options.device not in ("auto", device):
        raise InvalidConfiguration(
            f"--datasheet is {plan.datasheet} and --device is {options.device}; name the datasheet "
            "of the device that is measured, as --datasheet h100"
        )
    threads = options.threads or max(1, host_facts().cores // workers)
    return msgspec.structs.replace(options, device=device, threads=threads)


async def ask(
    cluster: MeasuredCluster,
    server: SimulatedServer,
    engine: TimedEngine,
    rounds: int,
    show: Callable[[str], object] = lambda _: None,
    mixed_s: float = MIXED_S,
) -> Seen:
    """What a client of this cluster sees: loads of one kind in all rounds, then mixed ones. `show`
    is handed what goes on. Raises `InvalidConfiguration`, or what a request failed with."""
    async with _client(cluster, server) as load:
        await load.warm_up()
        for number in range(rounds):
            show(f"asking it, round {number + 1} of {rounds} …")
            await load.round()
        most_rps = server.capacity_rps(served_alone(engine, load.seen))
        for number, share in enumerate(MIXED_SHARES, 1):
            show(f"asking it at {share:.0%} of what it can do …")
            mixed = drawn_load(share * most_rps, mixed_s, server.lengths, MIXED_SEED + number)
            load.seen.mixed.append(await load.mix(mixed, number))
        return load.seen


async def play(
    cluster: MeasuredCluster, server: SimulatedServer, load: Sequence[Conversation], point: int
) -> MeasuredLoad:
    """The requests as the live cluster served them; of each `point`, which calibrations have not,
    the prompts are others. Raises what a request failed with."""
    async with _client(cluster, server) as client:
        return await client.mix(load, len(MIXED_SHARES) + 1 + point)


@asynccontextmanager
async def _client(
    cluster: MeasuredCluster, server: SimulatedServer
) -> AsyncIterator[CalibrationLoad]:
    async with Client(Endpoint(cluster.url)) as client:
        model = await client.choose_model(None)
        assert model.vocabulary, "our own server says how large its vocabulary is"
        context_tokens = model.context or LEAST_CONTEXT_TOKENS
        if context_tokens < LEAST_CONTEXT_TOKENS:
            raise InvalidConfiguration(
                f"the model's context is {context_tokens} tokens; a calibration needs "
                f"{LEAST_CONTEXT_TOKENS}: raise --max-model-len or --kv-cache-memory"
            )
        limits = LoadLimits(context_tokens, server.max_sequences, server.two_workers)
        asking = Asking(model.id, vocabulary_tokens=model.vocabulary)
        yield CalibrationLoad(client, asking, limits, cluster.gateway_busy_s, cluster.steps)


def validation_load(server: SimulatedServer, profile: Path) -> list[Conversation]:
    """Requests of drawn lengths, at a share of the rate that the workers could sustain."""
    cost = server.cost(profile)
    rate = VALIDATION_SHARE * server.capacity_rps(cost.step_time, cost.serving)
    return drawn_load(rate, VALIDATION_S, server.lengths, VALIDATION_SEED)


def drawn_load(
    rate_rps: float, duration_s: float, lengths: LoadLengths, seed: int
) -> list[Conversation]:
    """Poisson arrivals of prompts and answers of up to these lengths."""
    count = max(LEAST_REQUESTS, round(rate_rps * duration_s))
    prompt, answer = lengths.prompt_tokens, lengths.answer_tokens
    synthetic = Synthetic(
        count,
        LengthLaw("uniform", min(16, prompt), prompt),
        LengthLaw("uniform", min(8, answer), answer),
        seed=seed,
    )
    return arrive(plan_synthetic(synthetic), Arrivals(rate_rps), seed)


def validation_record(found: Compared, adjusted: Compared, longer: float) -> dict[str, Any]:
    """For the profile: how far the simulator was from the server."""
    figures = [
        {
            "figure": f"{name} {figure}",
            "live_ms": live_ms,
            "simulated_ms": simulated_ms,
            "at_its_speed_ms": at_speed[3],
        }
        for (name, figure, live_ms, simulated_ms), at_speed in zip(found, adjusted, strict=True)
    ]
    return {"steps_took_times": round(longer, 3), "figures": figures}


def compared(live: Sequence[RequestOutcome], simulated: Sequence[RequestOutcome]) -> Compared:
    """(metric, figure, live ms, simulated ms)."""
    found = []
    for name, values in (("TTFT", ttfts_ns), ("TPOT", tpots_ns)):
        measured, ours = distribution(values(live)), distribution(values(simulated))
        assert measured is not None and ours is not None
        found += [
            (name, figure, of(measured) / 1e6, of(ours) / 1e6) for figure, of in FIGURES.items()
        ]
    return found


def _comparison_table(found: Compared, adjusted: Compared, longer: float) -> Table:
    """The server beside the simulator, and the simulator's error; also at the speed that the
    machine had meanwhile, if that is not what was calibrated."""
    speed = f"steps {longer - 1:+.1%}"
    figures = ("live ms", "simulated ms", "error", speed, "error ")
    table = plain_table("", *figures, right=figures)
    for (name, figure, live_ms, simulated_ms), at_speed in zip(found, adjusted, strict=True):
        row = [f"{live_ms:.2f}"]
        for ours_ms in (simulated_ms, at_speed[3]):
            row += [f"{ours_ms:.2f}", f"{100 * (ours_ms / live_ms - 1):+.1f} %"]
        table.add_row(f"{name} {figure}", *row)
    return table


def _noise_warning(noise: float) -> str:
    """Empty where there is no need for one."""
    if noise < MOST_NOISE:
        return ""
    return (
        f"the same streams differed by {noise:.0%} between rounds: other work ran on this machine; "
        "calibrate again when it is quiet"
    )


def _serving_table(record: dict[str, Any]) -> Table:
    table = plain_table("serving", "", right=("",))
    for name, value in record["serving"].items():
        shown = f"{value * 1e3:.3f} ms" if name.endswith("_s") else f"{value:.2f}"
        table.add_row(MEANINGS[name], shown)
    link = record.get("kv_transfer")
    if link:
        table.add_row("a KV transfer between workers", f"{link['latency_s'] * 1e3:.3f} ms")
        if "bytes_per_s" in link:
            table.add_row("its bandwidth", f"{link['bytes_per_s'] / 1e6:.0f} MB/s")
    return table


FIGURES: dict[str, Callable[[Distribution], float]] = {
    "mean": lambda found: found.mean_ns,
    "p50": lambda found: found.p50_ns,
    "p99": lambda found: found.p99_ns,
}
MEANINGS = {
    "request_s": "the gateway's loop, a request",
    "request_wait_s": "besides, until its first step",
    "prompt_token_s": "each token of its prompt",
    "message_s": "the gateway's loop, the tokens of a step",
    "token_s": "the gateway's loop, an event to a client",
    "cold_s": "the first step after idleness, more",
    "cold_after_s": "idle for so long",
    "prefill_slowdown": "prompts while another worker computes, times",
    "decode_slowdown": "decodes while another worker computes, times",
}
