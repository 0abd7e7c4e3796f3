"""Times the ways of summing over ranks beside each other, by size and number of ranks.

Each rank is a process with one thread; parts cross in shared memory, or over gloo on this
machine's loopback. Figures are microseconds a sum: the median, and the 10th and 90th percentile.
Usage: python bench/collectives.py [--ranks 2 4] [--kib 4 64 1024 4096] [--seconds S]
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from tandem.kernels.collectives.contract import AllReduceWay, Collectives
from tandem.kernels.collectives.distributed import World, choose_all_reduce, connect, disconnect

# (whether in shared memory, way)
WAYS: tuple[tuple[bool, AllReduceWay], ...] = (
    (True, "one-shot"),
    (True, "two-shot"),
    (False, "one-shot"),
    (False, "two-shot"),
    (False, "library"),
)
CALLS_AT_LEAST = 11
CALLS_AT_MOST = 400


def microseconds(group: Collectives, partial: torch.Tensor, seconds: float) -> list[float]:
    """Ranks must make the same number of calls, so the first ones tell how many there will be."""

    def once() -> float:
        begin = time.perf_counter()
        group.all_reduce(partial.clone())
        return (time.perf_counter() - begin) * 1e6

    trial = torch.tensor(max(once() for _ in range(3)))
    slowest = float(group.all_gather(trial.view(1), 0).max())
    calls = min(CALLS_AT_MOST, max(CALLS_AT_LEAST, int(seconds * 1e6 / slowest)))
    return [once() for _ in range(calls)]


def serve(line: Connection, world: World, sizes_kib: Sequence[int], seconds: float) -> None:
    torch.set_num_threads(1)
    group = connect(world).tensor
    line.send([microseconds(group, torch.randn(kib * 256), seconds) for kib in sizes_kib])
    disconnect()


def measure(world: World, sizes_kib: Sequence[int], seconds: float) -> list[list[float]]:
    """For each size, the microseconds of every call on rank 0. `world` has no meeting place yet."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        meeting_place = f"file://{Path(directory) / 'meeting'}"
        lines, processes = [], []
        for rank in range(world.ranks):
            ours, theirs = context.Pipe()
            own = replace(world, meeting_place=meeting_place, rank=rank)
            process = context.Process(target=serve, args=(theirs, own, sizes_kib, seconds))
            process.start()
            theirs.close()
            lines.append(ours)
            processes.append(process)
        found: list[list[float]] = lines[0].recv()
        for process in processes:
            process.join()
    return found


def spread(times_us: list[float]) -> str:
    deciles = statistics.quantiles(times_us, n=10)
    return f"{statistics.median(times_us):,.0f} ({deciles[0]:,.0f}-{deciles[-1]:,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--kib", type=int, nargs="+", default=[4, 64, 1024, 4096])
    parser.add_argument("--seconds", type=float, default=0.2, help="for each figure")
    options = parser.parse_args()
    for ranks in options.ranks:
        worlds = [World("", 0, ranks, share_memory=near, all_reduce=way) for near, way in WAYS]
        found = [measure(world, options.kib, options.seconds) for world in worlds]
        table = Table(title=f"{ranks} ranks, microseconds a sum", title_justify="left")
        table.add_column("KiB", justify="right")
        for near, way in WAYS:
            table.add_column(f"{way}, {'shared memory' if near else 'gloo'}", justify="right")
        table.add_column("auto takes")
        for index, kib in enumerate(options.kib):
            figures = [spread(times[index]) for times in found]
            table.add_row(str(kib), *figures, choose_all_reduce(kib << 10, ranks))
        Console(width=150).print(table)


if __name__ == "__main__":
    main()
