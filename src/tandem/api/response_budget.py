"""Memory budget of answers that do not stream: what all calls may hold until their clients have it.

A call counts what it keeps as it grows. Where all together would keep too much, the call that keeps
most ends; one that alone keeps half of the budget ends, too.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.api.errors import Refusal, Refused, retry_header
from tandem.facts.errors import InvalidRequest
from tandem.facts.sampling import SamplingParameters

# Less than this is not worth looking at the others.
_STEP_BYTES = 16 << 10
# What an alternative takes at least, nearly always.
_ALTERNATIVE_BYTES = 32


class HeldResponse:
    """What one call keeps. `evicted`: others needed the room."""

    def __init__(self, budget: "ResponseBudget", task: "asyncio.Task[object]") -> None:
        self.task = task
        self.taken_bytes = 0
        self.evicted = False
        self._budget = budget
        self._held_bytes = 0

    def grow(self, count: int) -> None:
        """Raises `InvalidRequest` for what is too much for one call, `Refused` with 503 where all
        calls together keep too much, and this one most of all."""
        self._held_bytes += count
        if self._held_bytes - self.taken_bytes > _STEP_BYTES:
            self._budget.charge(self, self._held_bytes - self.taken_bytes)


class ResponseBudget:
    """One for all calls of a server. Use it from one event loop."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.most_bytes_of_one = most_bytes // 2
        self.held_bytes = 0
        # In the order of their arrival.
        self._open: dict[HeldResponse, None] = {}

    @contextmanager
    def holding_response(self) -> Iterator[HeldResponse]:
        """For the current task, whose answer is let go at the end of the block. Raises `Refused`
        with 503, wherever the task is within the block, if others need the room."""
        task = asyncio.current_task()
        assert task is not None
        held = HeldResponse(self, task)
        self._open[held] = None
        try:
            yield held
        except asyncio.CancelledError:
            # Where the client has left as well, nobody needs to be told.
            if not held.evicted or task.uncancel():
                raise
            raise _overloaded() from None
        finally:
            del self._open[held]
            self.held_bytes -= held.taken_bytes

    def charge(self, held: HeldResponse, count: int) -> None:
        """See `HeldResponse.grow`."""
        held.taken_bytes += count
        self.held_bytes += count
        if held.taken_bytes > self.most_bytes_of_one:
            raise _too_large(self.most_bytes_of_one)
        while self.held_bytes > self.most_bytes:
            largest = max(self._open, key=lambda each: each.taken_bytes)
            if largest is held:
                raise _overloaded()
            self.held_bytes -= largest.taken_bytes
            largest.taken_bytes = 0
            largest.evicted = True
            largest.task.cancel()

    def check_request(
        self, asked_tokens: int | None, sampling: SamplingParameters, choices: int
    ) -> None:
        """Raises `InvalidRequest` for a call that asks for more at once than can be kept: so many
        tokens, as its client says, of each choice, and the alternatives to each."""
        if asked_tokens is None or sampling.top_logprobs is None:
            return
        tokens = choices * min(asked_tokens, sampling.max_tokens)
        if tokens * (1 + sampling.top_logprobs) * _ALTERNATIVE_BYTES > self.most_bytes_of_one:
            raise _too_large(self.most_bytes_of_one)


def _too_large(most_bytes: int) -> InvalidRequest:
    problem = f"times n and top_logprobs makes an answer of more than {most_bytes} bytes"
    remedy = "stream it, or ask for fewer tokens, choices or alternatives (top_logprobs)"
    return InvalidRequest("max_tokens", f"{problem}; {remedy}")


def _overloaded() -> Refused:
    problem = "the answers of all calls fill the server, this one most of all; stream it, or retry"
    return Refused(Refusal(503, problem, "overloaded", headers=retry_header()))
