"""What this machine can do at most, measured in the same run as everything that is held to it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

STREAM_BYTES = 1 << 30
MATRIX = 2048


@dataclass(frozen=True)
class Summary:
    """Of several repetitions: the median, and half the width of the middle half."""

    median: float
    spread: float


def timed(work: Callable[[], object], repetitions: int, warmups: int = 1) -> Summary:
    """Run `work` again and again."""
    for _ in range(warmups):
        work()
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return summarised(seconds)


def summarised(values: list[float]) -> Summary:
    if len(values) < 2:
        return Summary(values[0], 0.0)
    low, median, high = statistics.quantiles(values, n=4)
    return Summary(median, (high - low) / 2)


@dataclass(frozen=True)
class Limits:
    """Bytes read from memory a second, and fp32 operations a second of torch's matrix product."""

    stream_bytes_s: float
    sgemm_flops_s: float

    def __str__(self) -> str:
        stream_gb_s, sgemm_gflops = self.stream_bytes_s / 1e9, self.sgemm_flops_s / 1e9
        return f"stream {stream_gb_s:.1f} GB/s, sgemm {sgemm_gflops:.0f} GFLOP/s"


def measure_limits() -> Limits:
    """Reads a buffer far larger than the caches; multiplies two large fp32 matrices."""
    buffer = torch.ones(STREAM_BYTES // 4)
    stream = timed(buffer.sum, 9)
    a, b = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX)
    sgemm = timed(lambda: a @ b, 9)
    return Limits(STREAM_BYTES / stream.median, 2 * MATRIX**3 / sgemm.median)


def best_of(first: Limits, second: Limits) -> Limits:
    """The higher of the limits before and after: a noisy neighbour must not flatter us."""
    return Limits(
        max(first.stream_bytes_s, second.stream_bytes_s),
        max(first.sgemm_flops_s, second.sgemm_flops_s),
    )
