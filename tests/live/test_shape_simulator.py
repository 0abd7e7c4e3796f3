"""The process that simulates shapes: it answers, and whatever becomes of it, so does the gateway's
side, in bounded time."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tandem.facts.fleet import Role
from tandem.facts.shapes import FleetShape, RecordedRequest, WorkerGroup
from tandem.live.gateway.shape_simulator import SHAPE_SIMULATION, ShapeSimulator
from tandem.messages.gateway import ShapesSimulated, SimulateShapes

TEXT = """\
model: tandem-mini
block_size: 16
slo: {ttft: 2s, tpot: 100ms}
pools:
  - {name: p, role: prefill, device: cpu}
  - {name: d, role: decode, device: cpu, max_count: 3}
policies: {planning: {name: tandem, simulate: true}}
"""


def question(limit_s: float = 60.0) -> SimulateShapes:
    groups = (WorkerGroup("p", Role.PREFILL, 1, 500), WorkerGroup("d", Role.DECODE, 1, 500))
    demand = tuple(RecordedRequest(at * 10**8, 100, 10) for at in range(40))
    return SimulateShapes(7, (FleetShape(groups),), demand, 16, 1.0, 20.0, limit_s)


async def asked(command: tuple[str, ...], effect: SimulateShapes) -> ShapesSimulated:
    answers: asyncio.Queue[ShapesSimulated] = asyncio.Queue()
    simulator = ShapeSimulator(command, answers.put_nowait)
    simulator.simulate_shapes(effect)
    try:
        async with asyncio.timeout(60):
            return await answers.get()
    finally:
        await simulator.stop()


async def test_a_process_of_its_own_answers(tmp_path: Path):
    file = tmp_path / "cluster.yaml"
    file.write_text(TEXT)
    answer = await asked((*SHAPE_SIMULATION, str(file), str(os.getpid())), question())
    assert (answer.question_id, answer.problem) == (7, "")
    (figures,) = answer.figures
    assert (figures.requests, figures.devices) == (32, 2)
    assert answer.cpu_s > 0


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("import sys; sys.exit('no such cluster')", "it ended with 1: no such cluster"),
        ("print('what?')", "it failed"),
        ("import time; time.sleep(100)", "no answer in 0.5 s"),
    ],
)
async def test_a_process_that_fails_or_hangs_is_an_answer_too(script, problem):
    answer = await asked(
        (sys.executable, "-c", script), question(limit_s=0.5 if "time" in script else 60.0)
    )
    assert answer.question_id == 7
    assert problem in answer.problem


async def test_without_a_command_the_answer_is_there_at_once():
    answer = await asked((), question())
    assert answer.problem == "this gateway has no simulator"
