"""Starts a shape of cluster, lets a storm pass over it, and ends it: nothing may be left."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.asks import Ask, Said, arrivals
from tests.chaos.client import undisturbed
from tests.chaos.hands import Hands, Redis
from tests.chaos.mishaps import Mishap, draw_mishaps
from tests.chaos.namespaces import Switch
from tests.chaos.shapes import Shape, pace
from tests.chaos.storm import Outcome, Storm, leftovers, shared_memory, weather
from tests.journeys.clusters import TANDEM_UP, ClusterProcess, cluster
from tests.journeys.serving import serving


@dataclass(frozen=True)
class Weather:
    """How long and how hard: `rate` requests a second, a mishap every `every_s`."""

    duration_s: float = 10.0
    rate: float = 4.0
    every_s: float = 2.0


def expected_of(asks: Sequence[Ask]) -> dict[str, list[Said]]:
    """What one undisturbed process says to all of this."""
    with serving("--max-num-seqs", "24", "--threads", "1") as server:
        return asyncio.run(undisturbed(server.url, list(asks)))


@contextmanager
def up(shape: Shape, folder: Path, seed: int = 0) -> Iterator[tuple[ClusterProcess, Hands]]:
    """The cluster, and hands to disturb it. Raises AssertionError if it leaves anything behind."""
    network = os.getpid() % 250 if shape.network else None
    files = folder / "tiers"
    before = shared_memory()
    redis = Redis(_free_port()) if shape.victims().redis else None
    hands = Hands(folder / "state", shape.names(), seed, network, files, redis)
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
            yield running, hands
    finally:
        if redis is not None:
            redis.kill()
    left = leftovers(hands)
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_storm(
    place: tuple[ClusterProcess, Hands],
    asks: Sequence[Ask],
    expected: dict[str, list[Said]],
    mishaps: Sequence[Mishap],
    weather_: Weather,
) -> Outcome:
    """With these mishaps; none is the same load in calm weather."""
    running, hands = place
    seed = hands.seed
    load = arrivals(seed, list(asks), weather_.duration_s, weather_.rate)
    return asyncio.run(weather(running, hands, Storm(seed, load, mishaps, expected)))


def drawn(shape: Shape, seed: int, weather_: Weather) -> tuple[Mishap, ...]:
    return draw_mishaps(seed, shape.victims(), pace(weather_.duration_s, weather_.every_s))
