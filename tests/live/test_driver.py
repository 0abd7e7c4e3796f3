"""The driver of a machine: batches, one timer, how it ends."""

import asyncio

import pytest

from tandem.live.clock import now_ns
from tandem.live.driver import Driver, EventInbox

SOON_NS = 20_000_000
WAKE = "the time has passed"


class Told:
    """A machine that keeps what it is told, and wants to be woken at `wakeup_ns` once."""

    def __init__(self, wakeup_ns: int | None = None) -> None:
        self.batches: list[list[str]] = []
        self.wakeup_ns = wakeup_ns

    def handle_together(self, events, now_ns):
        self.batches.append(list(events))
        if WAKE in events:
            self.wakeup_ns = None
        return list(events)

    def next_wakeup(self):
        return self.wakeup_ns


def until(last: str):
    """Performs nothing, and ends with the effect of that name."""
    return lambda effects, _: last if last in effects else None


def test_what_happens_within_one_turn_of_the_loop_is_told_together():
    machine, inbox = Told(), EventInbox[str]()

    async def drive():
        driving = asyncio.create_task(Driver(machine, inbox, until("last")).run())
        await asyncio.sleep(0)
        inbox.enqueue("first")
        inbox.enqueue("second")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        inbox.enqueue("last")
        return await driving

    assert asyncio.run(drive()) == "last"
    assert machine.batches == [[], ["first", "second"], ["last"]]


def test_a_batch_is_bounded_and_others_have_their_turn_between_two():
    machine, inbox = Told(), EventInbox[str](lambda events: min(2, len(events)))
    for name in ("a", "b", "c", "d", "last"):
        inbox.enqueue(name)

    async def drive():
        driving = asyncio.create_task(Driver(machine, inbox, until("last")).run())
        turns = 0
        while not driving.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(drive()) >= 3
    assert machine.batches == [["a", "b"], ["c", "d"], ["last"]]


def test_a_machine_is_woken_when_it_wants_to_be_and_once():
    machine, inbox = Told(now_ns() + SOON_NS), EventInbox[str]()
    began_ns = now_ns()

    async def drive():
        driving = asyncio.create_task(Driver(machine, inbox, until(WAKE), WAKE).run())
        # What happens before sets no second timer.
        await asyncio.sleep(0.001)
        inbox.enqueue("meanwhile")
        return await driving

    assert asyncio.run(drive()) == WAKE
    assert now_ns() - began_ns >= SOON_NS // 2
    assert machine.batches == [[], ["meanwhile"], [WAKE]]


def test_a_wakeup_that_moves_is_heeded_where_it_is_now():
    machine, inbox = Told(now_ns() + 3600 * 10**9), EventInbox[str]()

    async def drive():
        driving = asyncio.create_task(Driver(machine, inbox, until(WAKE), WAKE).run())
        await asyncio.sleep(0)
        machine.wakeup_ns = now_ns()
        inbox.enqueue("sooner")
        async with asyncio.timeout(5):
            return await driving

    assert asyncio.run(drive()) == WAKE


def test_a_part_that_fails_ends_the_driver_whatever_else_waits():
    machine, inbox = Told(), EventInbox[str]()

    async def drive():
        driving = asyncio.create_task(Driver(machine, inbox, until("last")).run())
        await asyncio.sleep(0)
        inbox.enqueue("unheard")
        inbox.fail(RuntimeError("a thread broke"))
        inbox.fail(RuntimeError("and another one"))
        await driving

    with pytest.raises(RuntimeError, match="a thread broke"):
        asyncio.run(drive())
    assert machine.batches == [[]]


def test_what_the_machine_raises_is_raised():
    class Broken(Told):
        def handle_together(self, events, now_ns):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(Driver(Broken(), EventInbox[str](), until("last")).run())


def test_after_the_end_what_is_left_is_told_in_batches():
    machine, inbox = Told(), EventInbox[str](lambda events: min(2, len(events)))
    for name in ("a", "b", "c"):
        inbox.enqueue(name)
    Driver(machine, inbox, until("last")).settle()
    assert machine.batches == [["a", "b"], ["c"]]
