"""Times every native kernel beside the machine's own limits, measured in the same run.

Each line gives the median and the spread (10th to 90th percentile) of GB/s or GFLOP/s, and the
share of the limit: the stream for what memory bounds, torch's sgemm for what arithmetic bounds.
Usage: python bench/kernels.py [--threads N] [--seconds S] [--only linear draw]
                               [--arithmetic float32] [--instruction-set avx2]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from tandem.facts.model import NormSpec
from tandem.kernels.attention import POOL_DTYPES, AttentionBatch
from tandem.kernels.coding import code
from tandem.kernels.faces import Kernels, choose_kernels
from tandem.kernels.instructions import InstructionSet
from tandem.kernels.kv_rows import encode_rows
from tandem.kernels.packed import Arithmetic, Storage
from tandem.kernels.penalties import PenaltyRows, penalise
from tandem.kernels.rotary import QueryKeyValue, RotaryTable, TokenPlaces
from tandem.kernels.sampling import LateFilters, SamplingRows

STORAGES: tuple[Storage, ...] = ("float32", "bfloat16", "float16", "int8", "int4")
CODED: tuple[Storage, ...] = ("int8", "int4")
PACKED: tuple[Storage, ...] = ("bfloat16", *CODED)
BLOCK_SIZE = 16
CALLS_AT_LEAST = 5


@dataclass(frozen=True)
class Rate:
    """Units a second, in units of 1e9."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Bench:
    kernels: Kernels
    seconds: float
    stream: Rate
    sgemm: Rate

    def bytes_line(self, name: str, moved_bytes: float, run: Callable[[], object]) -> None:
        show(name, measure(run, moved_bytes, self.seconds), "GB/s", self.stream)

    def flops_line(self, name: str, flops: float, run: Callable[[], object]) -> None:
        show(name, measure(run, flops, self.seconds), "GFLOP/s", self.sgemm)


def measure(run: Callable[[], object], units: float, seconds: float) -> Rate:
    run()
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rates) < CALLS_AT_LEAST:
        begin = time.perf_counter()
        run()
        rates.append(units / (time.perf_counter() - begin) / 1e9)
    deciles = statistics.quantiles(rates, n=10)
    return Rate(deciles[0], statistics.median(rates), deciles[-1])


def show(name: str, rate: Rate, unit: str, limit: Rate | None = None) -> None:
    share = "" if limit is None else f"{rate.median / limit.median:6.0%}"
    print(f"{name:<46}{rate.median:8.1f} {unit:<8}[{rate.low:.1f} .. {rate.high:.1f}]{share}")


def calibrate(seconds: float) -> tuple[Rate, Rate]:
    stream = torch.ones(1 << 26)
    a, b = torch.randn(2, 2048, 2048)
    return (
        measure(stream.sum, stream.numel() * 4, seconds),
        measure(lambda: torch.mm(a, b), 2 * 2048**3, seconds),
    )


def bench_linear(bench: Bench) -> None:
    for storage in STORAGES:
        packed = bench.kernels.pack(torch.randn(8192, 4096) * 0.02, None, storage)
        for rows in (1, 4, 16):
            run = partial(bench.kernels.linear, torch.randn(rows, 4096), packed)
            bench.bytes_line(f"linear {storage} {rows} x 4096 -> 8192", packed.weight_bytes, run)
    for in_features, out_features in ((896, 4864), (4864, 896), (2048, 2048)):
        weight_NC, x_TC = torch.randn(out_features, in_features), torch.randn(2048, in_features)
        flops = 2 * 2048 * in_features * out_features
        shape = f"2048 x {in_features} -> {out_features}"
        bench.flops_line(f"torch mm {shape}", flops, partial(torch.mm, x_TC, weight_NC.T))
        for storage in STORAGES:
            packed = bench.kernels.pack(weight_NC, None, storage)
            run = partial(bench.kernels.linear, x_TC, packed)
            bench.flops_line(f"linear {storage} {shape}", flops, run)


def bench_rows(bench: Bench) -> None:
    """All matrices of the layers of Qwen2.5-0.5B's shape one after the other, from memory."""
    shapes = ((896, 1152), (896, 896), (896, 9728), (4864, 896))
    layers = [
        bench.kernels.pack((torch.randn(n, c) * 0.02).bfloat16(), None, "bfloat16")
        for _ in range(8)
        for c, n in shapes
    ]
    for rows in (1, 2, 4, 6, 8, 10, 16, 31, 48, 128, 512):
        x_TC = {c: torch.randn(rows, c) for c, _ in shapes}

        def run(x_TC: dict[int, Tensor] = x_TC) -> None:
            for packed in layers:
                bench.kernels.linear(x_TC[packed.in_features], packed)

        flops = 2 * rows * len(layers) / len(shapes) * sum(c * n for c, n in shapes)
        bench.flops_line(f"linears of layers, bfloat16, {rows} rows", flops, run)


def bench_packing(bench: Bench) -> None:
    """What loading does to a matrix in bfloat16, beside codes that torch makes; bytes are those of
    the matrix."""
    weight_NC = (torch.randn(8192, 4096) * 0.02).bfloat16()
    for storage in PACKED:
        run = partial(bench.kernels.pack, weight_NC, None, storage)
        bench.bytes_line(f"pack {storage} 4096 -> 8192", weight_NC.nbytes, run)
    for storage in CODED:
        bench.bytes_line(
            f"codes of {storage} by torch", weight_NC.nbytes, partial(code, weight_NC, storage)
        )


def pool_of(sequences: int, context: int, kv_shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    kv_heads, head_dim = kv_shape
    blocks = sequences * (-(-context // BLOCK_SIZE))
    pool = torch.randn(blocks, 1, 2, kv_heads, BLOCK_SIZE, head_dim)
    return encode_rows(pool, dtype)[:, 0]


def permuted_batch(queries: int, sequences: int, context: int) -> AttentionBatch:
    width = -(-context // BLOCK_SIZE)
    return AttentionBatch(
        query_start=(torch.arange(sequences + 1) * queries).int(),
        context_lengths=torch.full((sequences,), context, dtype=torch.int32),
        block_table=torch.randperm(sequences * width).int().view(sequences, width),
    )


# Sequences, context tokens, query heads, kv heads, head dim.
DECODE_SHAPES = (
    (16, 4096, 32, 8, 128),
    (16, 2048, 14, 2, 64),
    (8, 4096, 16, 16, 64),
    (1, 8192, 32, 8, 128),
)


def bench_attention(bench: Bench) -> None:
    attention = bench.kernels.paged_attention
    for dtype in POOL_DTYPES:
        for sequences, context, heads, kv_heads, head_dim in DECODE_SHAPES:
            kv = pool_of(sequences, context, (kv_heads, head_dim), dtype)
            batch, q = (
                permuted_batch(1, sequences, context),
                torch.randn(sequences, heads, head_dim),
            )
            name = f"decode {str(dtype)[6:]} {sequences} x {context}, {heads}/{kv_heads}/{head_dim}"
            moved_bytes = kv.numel() * kv.element_size()
            bench.bytes_line(name, moved_bytes, partial(attention, q, kv, batch, scale=0.1))
    for context, heads, kv_heads, head_dim in ((2048, 14, 2, 64), (2048, 32, 8, 128)):
        kv = pool_of(1, context, (kv_heads, head_dim), torch.bfloat16)
        batch, q = permuted_batch(context, 1, context), torch.randn(context, heads, head_dim)
        flops = 2 * context * context * heads * head_dim
        name = f"prefill bfloat16 {context}, {heads}/{kv_heads}/{head_dim}, causal half"
        bench.flops_line(name, flops, partial(attention, q, kv, batch, scale=0.1))


def bench_small(bench: Bench) -> None:
    # Results below 32 MiB, so that the allocator keeps their pages.
    kernels, tokens, features = bench.kernels, 1024, 4096
    x, residual = torch.randn(2, tokens, features)
    weight, matrix_bytes = torch.ones(features), tokens * features * 4
    bench.bytes_line("rms_norm", 2 * matrix_bytes, partial(kernels.rms_norm, x, weight, NormSpec()))
    run: Callable[[], object] = partial(kernels.add_rms_norm, x, residual, weight, NormSpec())
    bench.bytes_line("add_rms_norm", 4 * matrix_bytes, run)
    bench.bytes_line(
        "gated_activation", 1.5 * matrix_bytes, partial(kernels.gated_activation, x, "silu")
    )
    fused = torch.randn(tokens, 48, 128)
    heads = QueryKeyValue(fused[:, :32], fused[:, 32:40], fused[:, 40:])
    table = RotaryTable(torch.ones(tokens, 64), torch.zeros(tokens, 64))
    places = TokenPlaces(torch.arange(tokens), torch.randperm(tokens))
    pool = pool_of(1, tokens, (8, 128), torch.bfloat16)
    moved_bytes = tokens * 128 * (2 * 40 * 4 + 8 * 4 + 2 * 8 * 2)
    run = partial(kernels.rotate_and_store, heads, pool, table, places)
    bench.bytes_line("rotate_and_store bfloat16", moved_bytes, run)


def bench_sampling(bench: Bench) -> None:
    rows, vocabulary = 64, 152_064
    logits, one = torch.randn(rows, vocabulary) * 2, torch.ones(rows)
    typical = LateFilters(one * 0.9, one * 0, one * 0)
    xtc = LateFilters(one, one * 0.1, one)
    for name, temperature, top_k, top_p, late in (
        ("greedy", 0.0, 0, 1.0, None),
        ("temperature", 1.0, 0, 1.0, None),
        ("top_k 50", 1.0, 50, 1.0, None),
        ("top_p 0.9", 1.0, 0, 0.9, None),
        ("typical_p 0.9", 1.0, 0, 1.0, typical),
        ("xtc", 1.0, 0, 1.0, xtc),
    ):
        parameters = SamplingRows(
            one * temperature,
            (one * top_k).int(),
            one * top_p,
            one * 0,
            torch.arange(rows),
            torch.arange(rows),
            late,
        )
        run: Callable[[], object] = partial(bench.kernels.sample, logits, parameters)
        bench.bytes_line(f"sample {name}, 64 x 152k", logits.numel() * 4, run)
    run = partial(bench.kernels.token_logprobs, logits, torch.zeros(rows).long(), 5)
    bench.bytes_line("token_logprobs top 5, 64 x 152k", logits.numel() * 4, run)


def bench_draw(bench: Bench) -> None:
    """What a step does to logits of 16 sequences of 2,000 tokens, with penalties and top-p."""
    rows, vocabulary, said = 16, 151_936, 2000
    logits, one = torch.randn(rows, vocabulary) * 2, torch.ones(rows)
    starts = torch.arange(rows + 1) * said
    penalties = PenaltyRows(
        torch.arange(rows),
        torch.randint(0, vocabulary, (rows * said,), dtype=torch.int32),
        starts,
        starts[:-1] + said // 2,
        torch.tensor([[1.1, 0.2, 0.1]] * rows),
    )
    parameters = SamplingRows(
        one, one.int() * 0, one * 0.9, one * 0, torch.arange(rows), torch.arange(rows)
    )

    def draw() -> None:
        bench.kernels.penalise(logits, penalties)
        bench.kernels.sample(logits, parameters)

    for name, run in (
        ("penalties, 16 x 2,000 tokens", partial(bench.kernels.penalise, logits, penalties)),
        ("the same by torch", partial(penalise, logits, penalties)),
        ("penalties and top_p 0.9, 16 x 151,936", draw),
    ):
        rate = measure(run, 1e9, bench.seconds)
        print(f"{name:<46}{1e3 / rate.median:8.2f} ms")


def bench_overhead(bench: Bench) -> None:
    """Calls on next to nothing: what Python, checks and ctypes cost."""
    kernels = bench.kernels
    x, weight = torch.ones(1, 16), torch.ones(16)
    packed = kernels.pack(torch.ones(16, 16), None, "float32")
    kv, batch = pool_of(1, 16, (1, 16), torch.float32), permuted_batch(1, 1, 16)
    q = torch.ones(1, 1, 16)
    runs: dict[str, Callable[[], object]] = {
        "linear": partial(kernels.linear, x, packed),
        "rms_norm": partial(kernels.rms_norm, x, weight, NormSpec()),
        "paged_attention": partial(kernels.paged_attention, q, kv, batch, scale=1.0),
    }
    for name, run in runs.items():
        rate = measure(run, 1e9, min(bench.seconds, 0.2))
        print(f"{name + ' overhead':<46}{1e6 / rate.median:8.1f} us a call")


PARTS: dict[str, Callable[[Bench], None]] = {
    "overhead": bench_overhead,
    "packing": bench_packing,
    "linear": bench_linear,
    "rows": bench_rows,
    "attention": bench_attention,
    "small": bench_small,
    "sampling": bench_sampling,
    "draw": bench_draw,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--arithmetic", choices=get_args(Arithmetic), default="auto")
    parser.add_argument("--instruction-set", choices=get_args(InstructionSet), default="auto")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    kernels, reason = choose_kernels(
        cpu, torch.float32, True, options.arithmetic, options.instruction_set
    )
    print(f"{reason}; {options.threads} threads")
    for part in (PARTS[name] for name in options.only):
        # Limits drift on a shared machine: each part is judged by what held when it began.
        stream, sgemm = calibrate(options.seconds)
        show("stream read", stream, "GB/s")
        show("torch sgemm 2048^3", sgemm, "GFLOP/s")
        part(Bench(kernels, options.seconds, stream, sgemm))


if __name__ == "__main__":
    main()
