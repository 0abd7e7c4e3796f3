"""One call brings as many requests as it has choices: a gateway hears others in between."""

import asyncio

from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.live.gateway.loop import SUBMITTED_TOGETHER, GatewayLoop
from tandem.messages.router import RequestSubmitted, RequestWithdrawn

CHOICES = 64


class Heard:
    """In place of a machine: what it was told at one go."""

    def __init__(self) -> None:
        self.events: list[list[object]] = []

    def handle_together(self, events, now_ns):
        self.events.append(list(events))
        return []

    def next_wakeup(self):
        return None


def told(machine: Heard) -> tuple[GatewayLoop, list[object]]:
    loop = GatewayLoop(machine, None, lambda: None)
    choices = [Request(f"call-{index}", (1, 2), SamplingParameters()) for index in range(CHOICES)]
    events = [RequestSubmitted(each, 16.0) for each in choices]
    events.append(RequestWithdrawn("call-0"))
    for event in events:
        loop.tell(event)
    return loop, events


def test_choices_are_submitted_some_at_a_time_and_in_order():
    machine = Heard()
    loop, events = told(machine)

    async def neighbours_turns() -> int:
        running = asyncio.create_task(loop.run(None))
        turns = 0
        while sum(map(len, machine.events)) < len(events):
            await asyncio.sleep(0)
            turns += 1
        running.cancel()
        return turns

    turns = asyncio.run(neighbours_turns())
    assert [event for some in machine.events for event in some] == events
    submitted = [sum(isinstance(e, RequestSubmitted) for e in some) for some in machine.events]
    assert max(submitted) == SUBMITTED_TOGETHER
    assert turns >= CHOICES // SUBMITTED_TOGETHER


def test_whatever_was_told_is_heard_before_the_end():
    machine = Heard()
    loop, events = told(machine)
    loop.settle_all(None)
    assert [event for some in machine.events for event in some] == events
