"""Nobody waits for ever: for a rank that dies, for one that hangs, for one that never comes."""

import os
import signal
import threading
import time

import pytest
import torch

from tandem.kernels.collectives.distributed import World, connect, disconnect
from tests.parallel.ranks import Layout, Ranks, Seat, answer_on

SILENCE_S = 1.4
BRIEF = Layout(2, timeout_s=0.5)
BRIEF_SOCKETS = Layout(2, timeout_s=0.5, share_memory=False)
BRIEF_STAGES = Layout(1, 2, timeout_s=0.5)
HANGING = [
    (BRIEF, "sum"),
    (BRIEF_SOCKETS, "sum"),
    (BRIEF_STAGES, "recv"),
    (BRIEF_STAGES, "send"),
]


@pytest.fixture
def mortal(tmp_path):
    world = Ranks(tmp_path)
    yield world
    world.close()


def sum_that_fails(seat: Seat) -> float:
    """How long the survivor waited for a sum. Both are there for the first one."""

    def add_for_ever() -> None:
        while True:
            seat.groups.tensor.all_reduce(torch.ones(8))

    if seat.place.rank == 0:
        seat.groups.tensor.all_reduce(torch.ones(8))
        os.kill(os.getpid(), signal.SIGKILL)
    return _seconds_until_refused(add_for_ever)


def _seconds_until_refused(wait) -> float:
    begin = time.monotonic()
    with pytest.raises(RuntimeError):
        wait()
    return time.monotonic() - begin


@pytest.mark.parametrize("share_memory", [True, False])
def test_a_rank_that_was_killed(mortal: Ranks, share_memory):
    mortal.start(Layout(2, timeout_s=30.0, share_memory=share_memory), sum_that_fails)
    # Its lock and its connections go with it: nobody needs to wait for the timeout.
    assert answer_on(mortal.lines[1]) < 10.0
    with pytest.raises(EOFError):
        answer_on(mortal.lines[0])


def one_falls_silent(seat: Seat, what: str) -> float:
    tensor, stages = seat.groups.tensor, seat.groups.stages
    if seat.place.rank == 0:
        threading.Event().wait(SILENCE_S)
        return 0.0
    if what == "send":
        stages.send(torch.ones(8), 0)
    waits = {
        "sum": lambda: tensor.all_reduce(torch.ones(8)),
        "recv": lambda: stages.recv(torch.ones(8), 0),
        "send": lambda: stages.send(torch.ones(8), 0),
    }
    return _seconds_until_refused(waits[what])


@pytest.mark.parametrize(("layout", "what"), HANGING)
def test_a_rank_that_hangs(ranks: Ranks, layout, what):
    _, waited_s = ranks.run(layout, one_falls_silent, what)
    # It is given up while it still lives and holds its connections.
    assert layout.timeout_s / 2 < waited_s < SILENCE_S


def test_a_rank_that_never_comes(tmp_path):
    try:
        with pytest.raises(RuntimeError):
            connect(World(f"file://{tmp_path / 'meeting'}", rank=0, tensor_ranks=2, timeout_s=0.5))
    finally:
        disconnect()
