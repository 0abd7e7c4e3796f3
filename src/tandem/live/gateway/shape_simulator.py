"""Has shapes of the fleet simulated beside the event loop of a gateway: each question in a process
of its own, at the lowest priority, which is killed when it takes too long."""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from tandem.messages.gateway import ShapesSimulated, SimulateShapes

logger = logging.getLogger(__name__)

# The cluster file and the process id of the gateway follow. The module lies above this room, which
# knows it by its name alone.
SHAPE_SIMULATION = (sys.executable, "-m", "tandem.commands.shape_simulation")
# So long a process that was told to end may take before its end is not waited for.
LINGER_S = 2.0
MOST_PROBLEM_LETTERS = 300


class ShapeSimulator:
    """Runs `command` for each question, which reads it from its input and writes the answer to its
    output; without a command nothing can be simulated. Every answer goes to `answered`. For one
    event loop."""

    def __init__(self, command: Sequence[str], answered: Callable[[ShapesSimulated], None]) -> None:
        self._command = command
        self._answered = answered
        self._task: asyncio.Task[None] | None = None

    def simulate_shapes(self, effect: SimulateShapes) -> None:
        """See `SimulatorPort`. A question that is still open is given up."""
        if not self._command:
            problem = "this gateway has no simulator"
            self._answered(ShapesSimulated(effect.question_id, problem=problem))
            return
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._ask(effect), name="shape simulation")

    async def stop(self) -> None:
        """No answer comes any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _ask(self, effect: SimulateShapes) -> None:
        try:
            answer = await self._simulated(effect)
        except (OSError, msgspec.MsgspecError) as error:
            answer = ShapesSimulated(effect.question_id, problem=f"it failed: {error}")
        if answer.problem:
            logger.warning("shapes were not simulated: %s", answer.problem)
        self._answered(answer)

    async def _simulated(self, effect: SimulateShapes) -> ShapesSimulated:
        question = msgspec.msgpack.encode(effect)
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        try:
            async with asyncio.timeout(effect.limit_s):
                written, complaint = await process.communicate(question)
        except TimeoutError:
            problem = f"no answer in {effect.limit_s:g} s"
            return ShapesSimulated(effect.question_id, problem=problem)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S):
                        await process.wait()
        if process.returncode != 0:
            last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
            problem = f"it ended with {process.returncode}: {last[:MOST_PROBLEM_LETTERS]}"
            return ShapesSimulated(effect.question_id, problem=problem)
        return msgspec.msgpack.decode(written, type=ShapesSimulated)
