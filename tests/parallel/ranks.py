"""Processes that stand for the ranks of a worker: started once a test module, told what to do.

They are forked from a server that has imported everything but run nothing, so a world of four
costs one import. Each computes with one thread.
"""

import itertools
import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tandem.kernels.collectives.contract import AllReduceWay
from tandem.kernels.collectives.distributed import Groups, World, connect, disconnect
from tandem.kernels.faces import Kernels, choose_kernels, reference_kernels
from tandem.models.parallel import Place, places

PRELOADED = ["tandem.engine.engine", "tandem.models.load", "tests.parallel.ranks"]
PATIENCE_S = 60.0
MOST_RANKS = 4


@dataclass(frozen=True)
class Layout:
    """How a model is spread."""

    tensor_ranks: int = 1
    stages: int = 1
    sequence_parallel: bool = False
    all_reduce: AllReduceWay = "one-shot"
    timeout_s: float = 30.0
    share_memory: bool = True

    @property
    def ranks(self) -> int:
        return self.tensor_ranks * self.stages

    def __str__(self) -> str:
        by_token = " by token" if self.sequence_parallel else ""
        over = "" if self.share_memory else " over sockets"
        return f"tp{self.tensor_ranks} pp{self.stages}{by_token} {self.all_reduce}{over}"


@dataclass(frozen=True)
class Seat:
    """What a rank knows of itself while it does what it was told."""

    place: Place
    groups: Groups

    @property
    def drawing(self) -> bool:
        return self.place.is_last


Task = Callable[..., Any]


class Ranks:
    """Gives every process the same task; a task is a function of a module, called with a `Seat`."""

    def __init__(self, directory: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._meeting_places = (f"file://{directory / str(n)}" for n in itertools.count())
        self.lines: list[Connection] = []
        self.processes = []
        for _ in range(MOST_RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.lines.append(ours)
            self.processes.append(process)

    def run(self, layout: Layout, task: Task, *arguments: object) -> list[Any]:
        """What `task(seat, *arguments)` returned, by rank."""
        self.start(layout, task, *arguments)
        return [answer_on(line) for line in self.lines[: layout.ranks]]

    def start(self, layout: Layout, task: Task, *arguments: object) -> None:
        meeting_place = next(self._meeting_places)
        seats = places(layout.tensor_ranks, layout.stages, layout.sequence_parallel)
        for place, line in zip(seats, self.lines, strict=False):
            line.send((place, meeting_place, layout, task, arguments))

    def close(self) -> None:
        for line, process in zip(self.lines, self.processes, strict=True):
            line.close()
            process.join(PATIENCE_S)


def answer_on(line: Connection) -> Any:
    assert line.poll(PATIENCE_S), "a rank does not answer"
    went_well, found = line.recv()
    assert went_well, found
    return found


def _serve(line: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            place, meeting_place, layout, task, arguments = line.recv()
        except EOFError:
            return
        world = World(
            meeting_place,
            place.rank,
            place.tensor_ranks,
            place.stages,
            timeout_s=layout.timeout_s,
            all_reduce=layout.all_reduce,
            share_memory=layout.share_memory,
        )
        try:
            groups = connect(world)
            line.send((True, task(Seat(place, groups), *arguments)))
        except Exception:  # noqa: BLE001 - whatever went wrong is the test's to show
            line.send((False, traceback.format_exc()))
        finally:
            disconnect()


@cache
def kernels_for(dtype: torch.dtype) -> Kernels:
    """The native ones where they can be had."""
    if dtype is torch.float64:
        return reference_kernels()
    return choose_kernels(torch.device("cpu"), dtype, allow_native=True)[0]
