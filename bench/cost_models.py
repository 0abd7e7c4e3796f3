"""Estimated step times beside measured ones. Nothing is fitted to what it is compared with.

Splitwise measured whole steps of Llama-2-70B (prompt and token times of its published table);
LLMServingSim and AIConfigurator measured operators. The measurements lie outside the project; their
folder is the one argument.
"""

import csv
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tandem.config.hardware.worker import TimeModel, WorkerHardware, worker_cost
from tandem.cost.worker import WorkerCost

PROMPTS = (128, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
PROMPT_TOKENS = 512
Errors = list[float]


def splitwise_rows(folder: Path, device: str, ranks: int) -> Iterator[tuple[str, int, float]]:
    """(phase, prompt tokens or batch, median measured seconds) of Llama-2-70B."""
    found: dict[tuple[str, int], list[float]] = {}
    with gzip.open(folder / "splitwise/perf_model.csv.gz", "rt", newline="") as text:
        for row in csv.DictReader(text):
            wanted = ("llama2-70b", f"{device}-80gb", str(ranks))
            if (row["model"], row["hardware"], row["tensor_parallel"]) != wanted:
                continue
            prompt, batch = int(row["prompt_size"]), int(row["batch_size"])
            if batch == 1 and prompt in PROMPTS:
                found.setdefault(("prefill", prompt), []).append(float(row["prompt_time"]))
            if prompt == PROMPT_TOKENS and batch in BATCHES:
                found.setdefault(("decode", batch), []).append(float(row["token_time"]))
    for (phase, size), times_ms in sorted(found.items()):
        yield phase, size, median(times_ms) / 1e3


def estimated(cost: WorkerCost, phase: str, size: int) -> float:
    """Seconds of a prompt alone, or of a decode step of prompts in the middle of their answers."""
    if phase == "prefill":
        return cost.prefill_seconds(size)
    return cost.decode_seconds(size, size * (PROMPT_TOKENS + 64))


def costs(folder: Path, model: str, device: str, ranks: int) -> dict[str, WorkerCost]:
    """The roofline, and the tables that there are."""

    def made(kind: TimeModel, tables: str) -> WorkerCost:
        return worker_cost(
            WorkerHardware(model, device, ranks, chunk_tokens=8192, time_model=kind, tables=tables)
        )

    return {
        "roofline": made("roofline", ""),
        "AIConfigurator": made("tables", str(folder / "aiconfigurator")),
    }


def compare_with_splitwise(folder: Path, device: str, ranks: int) -> None:
    models = costs(folder, "llama-2-70b", device, ranks)
    print(f"\nLlama-2-70B, {device}, TP {ranks}: measured ms by Splitwise | " + " | ".join(models))
    errors: dict[str, Errors] = {name: [] for name in models}
    for phase, size, seconds in splitwise_rows(folder, device, ranks):
        line = [f"{phase} {size:>5}: {seconds * 1e3:8.1f}"]
        for name, cost in models.items():
            error = estimated(cost, phase, size) / seconds - 1
            errors[name].append(error)
            line.append(f"{estimated(cost, phase, size) * 1e3:8.1f} ({100 * error:+.0f} %)")
        print(" | ".join(line))
    _print_medians(errors)


def compare_with_operators(folder: Path, model: str, device: str, ranks: int) -> None:
    """The roofline against the sum of LLMServingSim's operators of the same model."""
    tables = str(folder / "llmservingsim")
    roofline = worker_cost(WorkerHardware(model, device, ranks))
    measured = worker_cost(WorkerHardware(model, device, ranks, time_model="tables", tables=tables))
    print(f"\n{model}, {device}, TP {ranks}: LLMServingSim's operators, ms | roofline")
    errors: dict[str, Errors] = {"prefill": [], "decode": []}
    for phase, sizes in (("prefill", PROMPTS), ("decode", BATCHES)):
        for size in sizes:
            table_s, plain_s = (estimated(cost, phase, size) for cost in (measured, roofline))
            errors[phase].append(plain_s / table_s - 1)
            error = f"{100 * errors[phase][-1]:+.0f} %"
            print(f"{phase} {size:>5}: {table_s * 1e3:8.1f} | {plain_s * 1e3:8.1f} ({error})")
    _print_medians(errors)


def _print_medians(errors: dict[str, Errors]) -> None:
    for name, values in errors.items():
        absolute = sorted(abs(value) for value in values)
        worst = 100 * absolute[-1]
        print(f"  {name}: median {100 * median(absolute):.0f} %, worst {worst:.0f} %")


def main() -> None:
    folder = Path(sys.argv[1])
    for device in ("h100", "a100"):
        for ranks in (8, 4):
            compare_with_splitwise(folder, device, ranks)
    compare_with_operators(folder, "llama-3.1-70b", "h100", 4)
    compare_with_operators(folder, "llama-3.1-8b", "rtx_pro_6000", 1)
    compare_with_operators(folder, "qwen3-32b", "rtx_pro_6000", 1)


if __name__ == "__main__":
    main()
