"""LoRA adapters: what a decode step and a prompt take where requests have adapters of their own,
beside the same requests without any, one after the other in the same run; and how long it takes to
load an adapter.

Usage: python bench/lora.py [--requests 16] [--adapters 8] [--rank 16] [--tokens 24] [--rounds 5]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from model import BLOCK_SIZE, CPU, HALF_BILLION, Rig, load
from tandem.engine.adapters import AdapterCache
from tandem.facts.adapter import Adapter
from tandem.facts.model import ModelSpec
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.kernels.faces import choose_kernels
from tandem.models.adapters import CONFIG_NAME, WEIGHTS_NAME, read_adapter, tensor_name
from tandem.models.decoder import Decoder
from tandem.models.load import load_adapter
from tandem.models.parameters import decoder_parts

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PROMPT_TOKENS = 128


def write_adapter(directory: Path, spec: ModelSpec, rank: int, seed: int) -> Adapter:
    """Random matrices in bfloat16 beside all linears."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in decoder_parts(spec).layers:
        for fused in (layer.qkv, layer.attention_output, layer.gate_up, layer.down):
            for part in fused.weights:
                name, (outputs, inputs) = part.name.removesuffix(".weight"), part.shape
                down = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
                up = torch.randn(outputs, rank, generator=generator) * 0.1
                tensors[tensor_name(name, "A")] = down.bfloat16()
                tensors[tensor_name(name, "B")] = up.bfloat16()
    directory.mkdir()
    save_file(tensors, directory / WEIGHTS_NAME)
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": TARGETS}
    (directory / CONFIG_NAME).write_text(json.dumps(fields))
    return read_adapter(directory, spec).adapter


def step_seconds(
    decoder: Decoder,
    cache: AdapterCache,
    adapters: Sequence[Adapter | None],
    requests: int,
    tokens: int,
) -> tuple[float, float]:
    """The median of the steps in which all decode, and of those that only compute prompts, a
    token; of requests whose adapters are these in turn."""
    blocks = requests * -(-(PROMPT_TOKENS + tokens) // BLOCK_SIZE)
    least_blocks = decoder.spec.context_tokens // BLOCK_SIZE
    rig = Rig.around(decoder, requests, max(blocks, least_blocks), adapters=cache)
    sampling = SamplingParameters(max_tokens=tokens)
    asked = [
        Request(
            str(number),
            tuple(range(1 + number, 1 + number + PROMPT_TOKENS)),
            sampling,
            adapter=adapters[number % len(adapters)],
        )
        for number in range(requests)
    ]
    steps = rig.timed(asked)
    decodes = [s for plan, s in steps if plan.batched_tokens == len(plan.slots) == requests]
    prompts = [s / plan.batched_tokens for plan, s in steps if plan.counts.min() > 1]
    return statistics.median(decodes), statistics.median(prompts)


def row(title: str, pairs: Sequence[tuple[float, float]], unit: float) -> Sequence[str]:
    """Medians of what was measured in turn, without and with adapters."""
    plain, adapted = zip(*pairs, strict=True)
    ratios = [one / other for other, one in pairs]
    return (
        title,
        f"{statistics.median(plain) * unit:.2f}",
        f"{statistics.median(adapted) * unit:.2f}",
        f"{statistics.median(ratios):.3f}",
        f"{min(ratios):.3f} to {max(ratios):.3f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    wishes = parser.parse_args()
    kernels, reason = choose_kernels(CPU, torch.float32, allow_native=True)
    decoder = load(HALF_BILLION, "bfloat16", kernels, None)
    table = Table(title=f"{wishes.requests} requests, {wishes.adapters} adapters ({reason})")
    for column in ("0.5B, bfloat16", "none", "adapters", "ratio", "of runs"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        adapters = [
            write_adapter(Path(folder) / str(seed), HALF_BILLION, wishes.rank, seed)
            for seed in range(wishes.adapters)
        ]
        read = partial(load_adapter, HALF_BILLION, kernels=kernels, device=CPU)
        start = time.perf_counter()
        held_bytes = sum(read(adapter).held_bytes for adapter in adapters)
        load_s = (time.perf_counter() - start) / len(adapters)
        cache = AdapterCache(read, 2 * held_bytes)
        measure = partial(
            step_seconds, decoder, cache, requests=wishes.requests, tokens=wishes.tokens
        )
        measure(adapters)
        rounds = [(measure([None]), measure(adapters)) for _ in range(wishes.rounds)]
    decode = [(plain[0], adapted[0]) for plain, adapted in rounds]
    prompts = [(plain[1], adapted[1]) for plain, adapted in rounds]
    table.add_row(*row("decode step, ms", decode, 1e3))
    table.add_row(*row("prompt token, us", prompts, 1e6))
    console = Console(width=110)
    console.print(table)
    megabytes = held_bytes / len(adapters) / 1e6
    console.print(
        f"an adapter of rank {wishes.rank}: {megabytes:.1f} MB, loaded in {load_s * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    main()
