"""The twin beside real vLLM: 300 ShareGPT requests on RTX PRO 6000s, request by request. A run that
the folder lacks is left out.

LLMServingSim measured the runs and, apart from them, the operators of the GPU; nothing is fitted to
the runs. The measurements lie outside the project; their folder is the one argument.
"""

import csv
import gzip
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from tandem.config.hardware.worker import WorkerHardware, kv_blocks, worker_cost
from tandem.cost.worker import StepTime
from tandem.facts.fleet import Role
from tandem.facts.trace import TraceRow
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.eviction.policies import Lru
from tandem.policy.routing.policies import make_routing
from tandem.report.record import RequestRecord
from tandem.report.statistics import Distribution, distribution
from tandem.twin.scenario import Policies, Pool, Scenario, WorkerKind
from tandem.twin.simulation import simulate

NS_PER_S = 1_000_000_000
# A second of the time series in which vLLM computed no prompt tells how long its decodes take.
INSTANTS_A_SECOND = 20
CONTEXT_TOKENS = 131_072


# (measured, simulated) seconds by metric and figure, and output tokens a second.
Comparison = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Run:
    """One recorded run, and the hardware that the twin takes for each of vLLM's ranks."""

    title: str
    files: str
    hardware: WorkerHardware
    ranks: int


@dataclass(frozen=True)
class Served:
    """One request as somebody served it; instants in seconds from the run's start."""

    arrival_s: float
    first_token_s: float
    last_token_s: float
    scheduled_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def latency_s(self) -> float:
        return self.last_token_s - self.arrival_s


@dataclass(frozen=True)
class Second:
    """What vLLM logged at the end of one second."""

    end_s: float
    prompt_tokens: float
    output_tokens: float
    running: int
    waiting: int


@dataclass(frozen=True)
class Measured:
    """A run of vLLM: its requests, its log, its own limits."""

    requests: list[Served]
    seconds: list[Second]
    max_sequences: int
    max_batched_tokens: int


METRICS: dict[str, Callable[[Served], float]] = {
    "TTFT": lambda request: request.ttft_s,
    "TPOT": lambda request: request.tpot_s,
    "latency": lambda request: request.latency_s,
}
FIGURES: dict[str, Callable[[Distribution], float]] = {
    "mean": lambda found: found.mean_ns,
    "p50": lambda found: found.p50_ns,
    "p90": lambda found: found.p90_ns,
    "p99": lambda found: found.p99_ns,
}


def runs(folder: Path) -> list[Run]:
    """The dense model by its measured operators, and the mixture, of which there are none here, by
    the roofline: each of its two ranks as if it held all experts. The larger dense model is cut
    over two GPUs without NVLink, with the link of the datasheet."""
    llama = WorkerHardware(
        "llama-3.1-8b",
        "rtx_pro_6000",
        time_model="tables",
        tables=str(folder / "llmservingsim"),
    )
    mixture = WorkerHardware("qwen3-30b-a3b", "rtx_pro_6000")
    cut = WorkerHardware("qwen3-32b", "rtx_pro_6000", tensor_parallel=2)
    roofline = replace(llama, time_model="roofline", tables="")
    return [
        Run("Llama-3.1-8B, operator tables", "RTXPRO6000_Llama-3.1-8B", llama, 1),
        Run("Llama-3.1-8B, roofline", "RTXPRO6000_Llama-3.1-8B", roofline, 1),
        Run("Qwen3-30B-A3B, roofline", "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507", mixture, 2),
        Run("Qwen3-32B on two GPUs, roofline", "RTXPRO6000_Qwen3-32B", cut, 1),
    ]


def read_measured(folder: Path, files: str) -> Measured:
    """Arrivals are those at vLLM's front (`arrival_time`, on the wall clock); the engine's instants
    are on its own clock. The quickest KV transfer of a request to it is taken to last no time."""
    prefix = f"{folder / 'llmservingsim/vllm_measured' / files}_vllm_"
    meta = json.loads(_text(f"{prefix}meta.json.gz"))
    rows = [json.loads(line) for line in _text(f"{prefix}requests.jsonl.gz").splitlines()]
    started_s = datetime.fromisoformat(meta["started_at"]).timestamp()
    ahead_s = min(row["queued_ts"] - row["arrival_time"] for row in rows)
    requests = [
        Served(
            arrival_s=row["arrival_time"] - started_s,
            first_token_s=row["first_token_ts"] - ahead_s - started_s,
            last_token_s=row["last_token_ts"] - ahead_s - started_s,
            scheduled_s=row["scheduled_ts"] - ahead_s - started_s,
            prompt_tokens=row["input_toks"],
            output_tokens=row["output_toks"],
        )
        for row in rows
    ]
    seconds = [
        Second(
            float(row["t"]),
            float(row["prompt_throughput"]),
            float(row["gen_throughput"]),
            int(row["running"]),
            int(row["waiting"]),
        )
        for row in csv.DictReader(_text(f"{prefix}timeseries.csv.gz").splitlines())
    ]
    limits = meta["engine_kwargs"]
    return Measured(requests, seconds, limits["max_num_seqs"], limits["max_num_batched_tokens"])


def in_the_twin(run: Run, measured: Measured) -> list[Served]:
    """The same requests at the same instants, served by our batching in simulated steps."""
    hardware = replace(run.hardware, chunk_tokens=measured.max_batched_tokens)
    kind = WorkerKind(
        cost=worker_cost(hardware),
        device=hardware.device,
        devices=hardware.devices,
        block_count=kv_blocks(hardware),
        max_sequences=measured.max_sequences,
        batching=TokenBudgetBatching(measured.max_batched_tokens),
    )
    pool = Pool("vllm", Role.BOTH, kind, run.ranks, run.ranks, run.ranks)
    return served_by(pool, hardware.block_size, CONTEXT_TOKENS, measured.requests)


def served_by(
    pool: Pool, block_size: int, context_tokens: int, requests: Sequence[Served]
) -> list[Served]:
    """Requests of these arrivals and lengths, in a simulated cluster of one pool."""
    policies = Policies(
        routing=make_routing("least-load", 0),
        admission=ADMISSIONS["none"](),
        dispatching=DISPATCHES["remote"](),
        eviction=Lru,
    )
    rows = [
        TraceRow(request.arrival_s, request.prompt_tokens, request.output_tokens)
        for request in requests
    ]
    run = simulate(Scenario((pool,), policies, block_size, context_tokens), rows)
    return [_served(record) for record in run.requests]


def errors(measured: Sequence[Served], simulated: Sequence[Served]) -> Comparison:
    found = {}
    for metric, seconds_of in METRICS.items():
        ours, theirs = (
            distribution(round(seconds_of(request) * NS_PER_S) for request in requests)
            for requests in (simulated, measured)
        )
        assert ours is not None and theirs is not None
        for figure, of in FIGURES.items():
            found[f"{metric} {figure}"] = (of(theirs) / NS_PER_S, of(ours) / NS_PER_S)
    found["output tokens/s"] = (output_rate(measured), output_rate(simulated))
    return found


def output_rate(requests: Sequence[Served]) -> float:
    """Tokens a second from the first arrival to the last token."""
    start_s = min(request.arrival_s for request in requests)
    end_s = max(request.last_token_s for request in requests)
    return sum(request.output_tokens for request in requests) / (end_s - start_s)


def queue_at(requests: Sequence[Served], instant_s: float) -> tuple[int, int]:
    """(running, waiting) at an instant."""
    running = sum(request.scheduled_s <= instant_s < request.last_token_s for request in requests)
    waiting = sum(request.arrival_s <= instant_s < request.scheduled_s for request in requests)
    return running, waiting


def decode_steps(measured: Measured, step_time: StepTime) -> list[tuple[float, float, float]]:
    """(sequences, vLLM's ms a step, ours) in the seconds in which vLLM only decoded: ours for the
    batches that it had then, so that no earlier error counts."""
    found = []
    for second in measured.seconds:
        if second.prompt_tokens or not second.output_tokens or not second.running:
            continue
        states = [
            decoding_at(measured.requests, second.end_s - index / INSTANTS_A_SECOND)
            for index in range(INSTANTS_A_SECOND)
        ]
        sequences = sum(count for count, _ in states) / INSTANTS_A_SECOND
        context = sum(tokens for _, tokens in states) / INSTANTS_A_SECOND
        ours_s = step_time.decode_seconds(round(sequences), round(context))
        found.append((sequences, 1e3 * sequences / second.output_tokens, 1e3 * ours_s))
    return found


def decoding_at(requests: Sequence[Served], instant_s: float) -> tuple[int, float]:
    """(sequences, tokens that they attend to in all), were tokens drawn evenly."""
    sequences, context = 0, 0.0
    for request in requests:
        if request.first_token_s <= instant_s < request.last_token_s:
            share = (instant_s - request.first_token_s) / (
                request.last_token_s - request.first_token_s
            )
            sequences += 1
            context += request.prompt_tokens + 1 + share * (request.output_tokens - 1)
    return sequences, context


def _served(record: RequestRecord) -> Served:
    assert record.emitted_tokens == record.output_tokens
    return Served(
        record.arrival_ns / NS_PER_S,
        record.first_token_ns / NS_PER_S,
        record.last_token_ns / NS_PER_S,
        record.scheduled_ns / NS_PER_S,
        record.prompt_tokens,
        record.output_tokens,
    )


def _text(path: str) -> str:
    with gzip.open(path, "rt", encoding="utf-8") as text:
        return text.read()


def show(title: str, names: tuple[str, str], found: Comparison) -> None:
    """Theirs beside ours, and the error of ours."""
    print(f"\n{title}\n{'':<16}{names[0]:>10}{names[1]:>10}{'error':>9}")
    for name, (theirs, ours) in found.items():
        print(f"{name:<16}{theirs:>10.4g}{ours:>10.4g}{100 * (ours / theirs - 1):>+8.1f}%")


def _report(run: Run, folder: Path) -> None:
    measured = read_measured(folder, run.files)
    simulated = in_the_twin(run, measured)
    show(run.title, ("vLLM", "twin"), errors(measured.requests, simulated))
    print("LLMServingSim's own figures of this run, in ms:")
    print(_text(f"{folder / 'llmservingsim/vllm_measured' / run.files}_validation_summary.txt.gz"))
    print("running and waiting every fifth second: vLLM | twin")
    for second in measured.seconds[4::5]:
        ours_now = queue_at(simulated, second.end_s)
        print(f"{second.end_s:>5.0f} s {(second.running, second.waiting)!s:>12} | {ours_now}")
    if run.ranks == 1:
        print("seconds without prompts: sequences, ms of a step: vLLM | the model, same batch")
        step_time = worker_cost(run.hardware).step_time
        for sequences, theirs_ms, ours_ms in decode_steps(measured, step_time):
            error = f"{100 * (ours_ms / theirs_ms - 1):+.1f} %"
            print(f"{sequences:>6.1f} {theirs_ms:>8.2f} | {ours_ms:>6.2f} ({error})")


def main() -> None:
    folder = Path(sys.argv[1])
    for run in runs(folder):
        if Path(f"{folder / 'llmservingsim/vllm_measured' / run.files}_vllm_meta.json.gz").exists():
            _report(run, folder)
        else:
            print(f"\n{run.title}: {run.files} is not in {folder}")


if __name__ == "__main__":
    main()
