"""How fast the twin is: seconds and memory for one workload on clusters of growing size.

The load a worker is kept: the trace plays faster on a larger cluster. Each run has a process of its
own, so that its peak memory is its own.
Usage: python bench/twin.py TRACE... [--requests 20000] [--workers 1,16,128,1024]
"""

import argparse
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from tandem.bench.traces.reader import read_trace
from tandem.bench.traces.shape import merge, speed, spread, window
from tandem.commands.scenario import scenario_of
from tandem.config.cluster.file import Cluster, read_cluster
from tandem.facts.fleet import Role
from tandem.twin.simulation import simulate

RECORDED_WORKERS = 16


@dataclass(frozen=True)
class Figures:
    """One run: CPU seconds of its one thread, and what they bought."""

    workers: int
    wall_s: float
    cpu_s: float
    simulated_s: float
    events: int
    finished: int
    tokens: int
    peak_mib: float


def cluster_of(workers: int) -> Cluster:
    """Half of the workers prefill and half decode; one alone does both."""
    cluster = read_cluster("mooncake-16")
    prefill, decode = cluster.pools
    if workers == 1:
        return replace(cluster, pools=(replace(prefill, role=Role.BOTH, count=1),))
    half = workers // 2
    return replace(cluster, pools=(replace(prefill, count=half), replace(decode, count=half)))


def run(paths: list[Path], requests: int, workers: int) -> Figures:
    traces = [spread(read_trace(path), seed=0) for path in paths]
    rows = speed(window(merge(traces), first=requests), workers / RECORDED_WORKERS)
    scenario = scenario_of(cluster_of(workers))
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    record = simulate(scenario, rows)
    return Figures(
        workers=workers,
        wall_s=time.perf_counter() - wall_s,
        cpu_s=time.process_time() - cpu_s,
        simulated_s=record.end_ns / 1e9,
        events=record.events,
        finished=sum(request.ending == "finished" for request in record.requests),
        tokens=sum(request.emitted_tokens for request in record.requests),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--workers", default="1,16,128,1024")
    options = parser.parse_args()
    print(f"the first {options.requests} requests of {', '.join(p.name for p in options.traces)}")
    print("workers   wall s    cpu s  simulated s   us/request    events   tokens/s  peak MiB")
    for workers in map(int, options.workers.split(",")):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            figures = pool.submit(run, options.traces, options.requests, workers).result()
        print(
            f"{figures.workers:7d} {figures.wall_s:8.1f} {figures.cpu_s:8.1f} "
            f"{figures.simulated_s:12.0f} {figures.cpu_s / figures.finished * 1e6:12.0f} "
            f"{figures.events:9d} {figures.tokens / figures.cpu_s:10.0f} {figures.peak_mib:9.0f}"
        )


if __name__ == "__main__":
    main()
