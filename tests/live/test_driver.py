"""The driver of a machine: batches, one timer, how it ends."""

import asyncio

import pytest

from tandem.live.clock import now_ns
from tandem.live.driver import Driver, EventInbox

SOON_NS = 20_000_000
WAKE = "the time has passed"


class Recording:
    """A machine that keeps what it is handed, and wants to be woken at `wakeup_ns` once."""

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


def two_at_most(events):
    return min(2, len(events))


def drive(machine, inbox, last: str) -> "asyncio.Task[str]":
    """Performs nothing, and ends with the effect of that name."""
    ends = Driver(machine, inbox, lambda effects, _: last if last in effects else None, WAKE)
    return asyncio.create_task(ends.run())


async def test_what_happens_within_one_turn_of_the_loop_is_handed_over_together():
    machine, inbox = Recording(), EventInbox[str]()
    driving = drive(machine, inbox, "last")
    await asyncio.sleep(0)
    inbox.enqueue("first")
    inbox.enqueue("second")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    inbox.enqueue("last")
    assert await driving == "last"
    assert machine.batches == [[], ["first", "second"], ["last"]]


async def test_a_batch_is_bounded_and_others_have_their_turn_between_two():
    machine, inbox = Recording(), EventInbox[str](two_at_most)
    for name in ("a", "b", "c", "d", "last"):
        inbox.enqueue(name)
    driving, turns = drive(machine, inbox, "last"), 0
    while not driving.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 3
    assert machine.batches == [["a", "b"], ["c", "d"], ["last"]]


async def test_a_machine_is_woken_when_it_wants_to_be_and_once():
    began_ns = now_ns()
    machine, inbox = Recording(began_ns + SOON_NS), EventInbox[str]()
    driving = drive(machine, inbox, WAKE)
    # What happens before sets no second timer.
    await asyncio.sleep(0.001)
    inbox.enqueue("meanwhile")
    assert await driving == WAKE
    assert now_ns() - began_ns >= SOON_NS // 2
    assert machine.batches == [[], ["meanwhile"], [WAKE]]


async def test_a_wakeup_that_moves_is_heeded_where_it_is_now():
    machine, inbox = Recording(now_ns() + 3600 * 10**9), EventInbox[str]()
    driving = drive(machine, inbox, WAKE)
    await asyncio.sleep(0)
    machine.wakeup_ns = now_ns()
    inbox.enqueue("sooner")
    async with asyncio.timeout(5):
        assert await driving == WAKE


async def test_a_part_that_fails_ends_the_driver_whatever_else_waits():
    machine, inbox = Recording(), EventInbox[str]()
    driving = drive(machine, inbox, "last")
    await asyncio.sleep(0)
    inbox.enqueue("never handled")
    inbox.fail(RuntimeError("a thread broke"))
    inbox.fail(RuntimeError("and another one"))
    with pytest.raises(RuntimeError, match="a thread broke"):
        await driving
    assert machine.batches == [[]]


async def test_what_the_machine_raises_is_raised():
    class Broken(Recording):
        def handle_together(self, events, now_ns):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await drive(Broken(), EventInbox[str](), "last")


def test_after_the_end_what_is_left_is_handed_over_in_batches():
    machine, inbox = Recording(), EventInbox[str](two_at_most)
    for name in ("a", "b", "c"):
        inbox.enqueue(name)
    Driver(machine, inbox, lambda effects, _: None).settle()
    assert machine.batches == [["a", "b"], ["c"]]
