"""A whole calibration: times the engine, asks a small cluster over HTTP, fits what serving costs,
writes the profile, and compares server and simulator on a load that was not used before."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

import tandem
from tandem.bench.client import Client, Endpoint
from tandem.bench.laws import Arrivals, LengthLaw
from tandem.bench.load import Asker, Asking, Pacing, run_load
from tandem.bench.workload import ContentSource, Conversation, Synthetic, arrive, plan_synthetic
from tandem.commands.calibration_load import LEAST_CONTEXT_TOKENS, CalibrationLoad, LoadLimits, Seen
from tandem.commands.engine_grid import Grid, engine_record, time_engine
from tandem.commands.measured_cluster import (
    MeasuredCluster,
    cluster_text,
    running,
    with_profile,
)
from tandem.commands.scenario import scenario_of
from tandem.commands.terminal import plain_table, print_warning
from tandem.config.cluster.file import Cluster, read_cluster
from tandem.config.environment import BUNDLED_MODEL, host_facts
from tandem.config.hardware.pools import pool_cost
from tandem.config.hardware.worker import PROFILE_VERSION, load_device
from tandem.config.options import ServeOptions
from tandem.cost.fitted import FittedStepTime
from tandem.cost.serving import (
    COLD_AFTER_S,
    fit_serving,
    fit_transfer,
    rounded,
    serving_fields,
    transfer_fields,
)
from tandem.cost.worker import WorkerCost
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow
from tandem.models.directory import find_model
from tandem.report.record import MeasuredRequest, RequestOutcome
from tandem.report.statistics import Distribution, distribution, tpots_ns, ttfts_ns
from tandem.twin.simulation import simulate

# The load of the comparison: a share of what the server can do, for so long, after another seed.
VALIDATION_SHARE = 0.5
VALIDATION_S = 15.0
LEAST_REQUESTS = 40
# Above this the figures are more of what else ran than of the server.
MOST_NOISE = 0.25
VALIDATION_SEED = 7
LONGEST_PROMPT_TOKENS = 512
LONGEST_ANSWER_TOKENS = 128

__all__ = ["CalibrationPlan", "Grid", "calibrate"]


@dataclass(frozen=True)
class CalibrationPlan:
    """What to measure: `roles` are the workers of the cluster, of which there may be none."""

    model: str | None
    options: ServeOptions
    roles: tuple[str, ...]
    datasheet: str
    grid: Grid
    rounds: int
    validates: bool


def calibrate(plan: CalibrationPlan, path: Path, console: Console) -> None:
    """Measure, show, write. Raises `InvalidConfiguration`, or what a request failed with."""
    directory = model_directory(plan)
    options = on_this_machine(plan)
    engine, samples, server = time_engine(directory, options, plan.grid, console)
    record = {"version": PROFILE_VERSION, **engine_record(engine, samples)}
    record["setup"] = {
        "tandem": tandem.__version__,
        "model": BUNDLED_MODEL.name if plan.model is None else plan.model,
        "device": server.device.type,
        "threads": server.threads,
        "storage": server.storage,
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
        with running(text, folder) as cluster:
            with console.status("asking it …") as status:
                seen = asyncio.run(ask(cluster, plan, status.update))
            record |= serving_record(engine, seen, worker_cost_of(text, folder))
            write_profile(path, record)
            console.print(_serving_table(record))
            print_warning(console, _noise_warning(seen.noise()))
            console.print(f"written to {path}", soft_wrap=True)
            if plan.validates:
                load = validation_load(text, path, folder)
                with console.status(f"comparing {len(load)} requests in {VALIDATION_S:.0f} s …"):
                    live = asyncio.run(play(cluster, load))
                served = [each for each in live if each.finished]
                if len(served) < len(live):
                    console.print(f"{len(live) - len(served)} of {len(live)} requests failed")
                if served:
                    found = compared(served, in_the_twin(served, text, path, folder))
                    write_profile(path, record | {"validation": validation_record(found)})
                    console.print(_comparison_table(found))


def model_directory(plan: CalibrationPlan) -> Path:
    return BUNDLED_MODEL if plan.model is None else find_model(plan.model, plan.options.revision)


def on_this_machine(plan: CalibrationPlan) -> ServeOptions:
    """The engine is timed on the device that the cluster's workers have, and each of them has its
    share of the cores, unless the user says how many. Raises `InvalidConfiguration`."""
    options, workers = plan.options, len(plan.roles)
    if not workers:
        return options
    device = "cpu" if load_device(plan.datasheet).name == "cpu" else "cuda"
    if options.device not in ("auto", device):
        raise InvalidConfiguration(
            f"datasheet is {plan.datasheet} and device is {options.device}; name the datasheet of "
            "the device that is measured, as --datasheet h100"
        )
    threads = options.threads or max(1, host_facts().cores // workers)
    return msgspec.structs.replace(options, device=device, threads=threads)


async def ask(
    cluster: MeasuredCluster, plan: CalibrationPlan, show: Callable[[str], object] = lambda _: None
) -> Seen:
    """What a client of this cluster sees in all rounds; `show` is told which one it is."""
    async with Client(Endpoint(cluster.url)) as client:
        model = await client.choose_model(None)
        assert model.vocabulary, "our own server tells its vocabulary"
        context_tokens = model.context or LEAST_CONTEXT_TOKENS
        if context_tokens < LEAST_CONTEXT_TOKENS:
            raise InvalidConfiguration(
                f"the model's context is {context_tokens} tokens; a calibration needs "
                f"{LEAST_CONTEXT_TOKENS}: raise --max-model-len or --kv-cache-memory"
            )
        limits = LoadLimits(
            context_tokens, plan.options.max_num_seqs, two_workers=len(plan.roles) > 1
        )
        asking = Asking(model.id, vocabulary_tokens=model.vocabulary)
        load = CalibrationLoad(client, asking, limits, cluster.gateway_busy_s)
        await load.warm_up()
        for number in range(plan.rounds):
            show(f"asking it, round {number + 1} of {plan.rounds} …")
            await load.round()
    return load.seen


def serving_record(engine: FittedStepTime, seen: Seen, cost: WorkerCost) -> dict[str, Any]:
    """The server's part of a profile: what was fitted, and what it was fitted to."""
    serving = fit_serving(engine, seen.first_tokens(), seen.decodes(), seen.gateway_load())
    serving = replace(serving, cold_s=seen.cold(), cold_after_s=COLD_AFTER_S)
    serving = replace(
        serving,
        prefill_slowdown=seen.slowdown(seen.prefill_slowdowns),
        decode_slowdown=seen.slowdown(seen.decode_slowdowns),
    )
    record: dict[str, Any] = {"serving": serving_fields(rounded(serving))}
    transfers = seen.transfers() if seen.second_s else []
    if transfers:
        link = fit_transfer([(cost.kv_bytes(tokens), seconds) for tokens, seconds in transfers])
        record["kv_transfer"] = transfer_fields(link)
    record["measured"] = {
        "noise_percent": round(100 * seen.noise(), 1),
        "first_tokens": [asdict(each) for each in seen.first_tokens()],
        "decodes": [asdict(each) for each in seen.decodes()],
        "kv_transfers": [
            {"prompt_tokens": tokens, "seconds": seconds} for tokens, seconds in transfers
        ],
        "prefill_slowdowns": seen.prefill_slowdowns,
        "decode_slowdowns": seen.decode_slowdowns,
    }
    return record


def write_profile(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def worker_cost_of(text: str, folder: Path) -> WorkerCost:
    """Of the first worker of this cluster file."""
    cluster = _cluster(text, folder)
    return pool_cost(cluster, cluster.pools[0])


def validation_load(text: str, profile: Path, folder: Path) -> list[Conversation]:
    """Requests of drawn lengths, at a share of the rate that the workers could sustain."""
    cost = worker_cost_of(with_profile(text, profile), folder)
    context_tokens = _cluster(text, folder).max_model_len or LONGEST_PROMPT_TOKENS * 4
    prompt_tokens = min(LONGEST_PROMPT_TOKENS, context_tokens // 2)
    answer_tokens = min(LONGEST_ANSWER_TOKENS, context_tokens // 4)
    rate = VALIDATION_SHARE * sustained_rate(cost, prompt_tokens // 2, answer_tokens // 2)
    return drawn_load(rate, VALIDATION_S, prompt_tokens, answer_tokens, VALIDATION_SEED)


def sustained_rate(cost: WorkerCost, prompt_tokens: int, answer_tokens: int) -> float:
    """Requests a second of one worker that computes prompts and draws for eight sequences."""
    side_by_side = 8
    context_tokens = side_by_side * (prompt_tokens + answer_tokens // 2)
    gap_s = cost.decode_seconds(side_by_side, context_tokens)
    return 1.0 / (cost.prefill_seconds(prompt_tokens) + answer_tokens * gap_s / side_by_side)


def drawn_load(
    rate_rps: float, duration_s: float, prompt_tokens: int, answer_tokens: int, seed: int
) -> list[Conversation]:
    """Poisson arrivals; prompts of up to `prompt_tokens`, answers of up to `answer_tokens`."""
    count = max(LEAST_REQUESTS, round(rate_rps * duration_s))
    synthetic = Synthetic(
        count,
        LengthLaw("uniform", min(16, prompt_tokens), prompt_tokens),
        LengthLaw("uniform", min(8, answer_tokens), answer_tokens),
        seed=seed,
    )
    return arrive(plan_synthetic(synthetic), Arrivals(rate_rps), seed)


async def play(
    cluster: MeasuredCluster, load: Sequence[Conversation], point: int = 0
) -> list[MeasuredRequest]:
    """The requests as the live cluster served them. Of each `point` the prompts are others."""
    async with Client(Endpoint(cluster.url)) as client:
        model = await client.choose_model(None)
        asking = Asking(model.id, vocabulary_tokens=model.vocabulary)
        asker = Asker(client, asking, ContentSource(VALIDATION_SEED, point))
        return await run_load(load, Pacing(open_loop=True), asker.send)


def in_the_twin(
    live: Sequence[MeasuredRequest], text: str, profile: Path, folder: Path
) -> Sequence[RequestOutcome]:
    """The same requests at the instants at which the client sent them, by this profile."""
    first_ns = min(each.arrival_ns for each in live)
    rows = [
        TraceRow((each.arrival_ns - first_ns) / 1e9, each.prompt_tokens, each.emitted_tokens)
        for each in sorted(live, key=lambda each: each.arrival_ns)
    ]
    return simulate(scenario_of(_cluster(with_profile(text, profile), folder)), rows).requests


def validation_record(found: Sequence[tuple[str, str, float, float]]) -> list[dict[str, Any]]:
    """For the profile: how far the simulator was from the server."""
    return [
        {"figure": f"{name} {figure}", "live_ms": live_ms, "simulated_ms": simulated_ms}
        for name, figure, live_ms, simulated_ms in found
    ]


def compared(
    live: Sequence[RequestOutcome], simulated: Sequence[RequestOutcome]
) -> list[tuple[str, str, float, float]]:
    """(metric, figure, live ms, simulated ms)."""
    found = []
    for name, values in (("TTFT", ttfts_ns), ("TPOT", tpots_ns)):
        measured, ours = distribution(values(live)), distribution(values(simulated))
        assert measured is not None and ours is not None
        found += [
            (name, figure, of(measured) / 1e6, of(ours) / 1e6) for figure, of in FIGURES.items()
        ]
    return found


def _cluster(text: str, folder: Path) -> Cluster:
    file = folder / "simulated.yaml"
    file.write_text(text, encoding="utf-8")
    return read_cluster(str(file))


def _comparison_table(found: Sequence[tuple[str, str, float, float]]) -> Table:
    """The server beside the simulator, and the simulator's error."""
    figures = ("live ms", "simulated ms", "error")
    table = plain_table("", *figures, right=figures)
    for name, figure, live_ms, simulated_ms in found:
        error = f"{100 * (simulated_ms / live_ms - 1):+.1f} %"
        table.add_row(f"{name} {figure}", f"{live_ms:.2f}", f"{simulated_ms:.2f}", error)
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
    "token_s": "the gateway's loop, an event to a client",
    "stretch": "a step beside the engine's own time, times",
    "step_s": "and more, each step",
    "row_s": "and more, each token drawn",
    "cold_s": "the first step after idleness, more",
    "cold_after_s": "idle for so long",
    "prefill_slowdown": "prompts while another worker computes, times",
    "decode_slowdown": "decodes while another worker computes, times",
}
