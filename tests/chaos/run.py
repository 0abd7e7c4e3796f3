"""Starts a shape of cluster, lets a storm pass over it, and ends it: nothing may be left."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.client import undisturbed
from tests.chaos.injector import FaultInjector
from tests.chaos.live_faults import LiveFault, draw_faults
from tests.chaos.namespaces import Switch
from tests.chaos.shapes import Shape, pace
from tests.chaos.storm import Outcome, Storm, leftovers, run_storm, shared_memory
from tests.chaos.workload import Answer, Question, arrivals
from tests.journeys.clusters import TANDEM_UP, ClusterProcess, cluster
from tests.journeys.serving import serving
from tests.kv.tier_blocks import RedisServer, free_port


@dataclass(frozen=True)
class LoadLevel:
    """How long and how hard: `rate` requests a second, a fault every `every_s`."""

    duration_s: float = 10.0
    rate: float = 4.0
    every_s: float = 2.0


def expected_of(questions: Sequence[Question]) -> dict[str, list[Answer]]:
    """What one undisturbed process answers to all of this."""
    with serving("--max-num-seqs", "24", "--threads", "1") as server:
        return asyncio.run(undisturbed(server.url, list(questions)))


@contextmanager
def up(shape: Shape, folder: Path, seed: int = 0) -> Iterator[tuple[ClusterProcess, FaultInjector]]:
    """The cluster, and what disturbs it. Raises AssertionError if it leaves anything behind."""
    network = os.getpid() % 250 if shape.network else None
    files = folder / "tiers"
    before = shared_memory()
    redis = RedisServer(free_port(), folder, ()) if shape.victims().redis else None
    injector = FaultInjector(folder / "state", shape.names(), seed, network, files, redis)
    listen, command = "127.0.0.1", TANDEM_UP
    if network is not None:
        listen = Switch(network).address
        module = (sys.executable, "-u", "-m", "tests.chaos.namespaces")
        command = (*module, "--network", str(network))
    if redis is not None:
        redis.start()
    try:
        with (
            _room(files, shape),
            cluster(
                shape.text(listen, str(files), redis.port if redis else 0), folder, command
            ) as running,
        ):
            yield running, injector
    finally:
        if redis is not None:
            redis.kill()
    left = leftovers(injector)
    assert not left, left
    assert shared_memory() <= before, shared_memory() - before


@contextmanager
def _room(files: Path, shape: Shape) -> Iterator[None]:
    """A small file system for the files of tiers, so that it can be filled."""
    files.mkdir()
    if not shape.victims().files:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", files], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", files], check=True)


def one_storm(
    place: tuple[ClusterProcess, FaultInjector],
    questions: Sequence[Question],
    expected: dict[str, list[Answer]],
    faults: Sequence[LiveFault],
    level: LoadLevel,
) -> Outcome:
    """With these faults; none is the same load in calm weather."""
    running, injector = place
    seed = injector.seed
    load = arrivals(seed, list(questions), level.duration_s, level.rate)
    return asyncio.run(run_storm(running, injector, Storm(seed, load, faults, expected)))


def drawn(shape: Shape, seed: int, level: LoadLevel) -> tuple[LiveFault, ...]:
    return draw_faults(seed, shape.victims(), pace(level.duration_s, level.every_s))
