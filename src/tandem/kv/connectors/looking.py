"""Waiting for ends that nobody announces: their state is looked at, ever less often."""

from collections.abc import Callable
from typing import Final

from tandem.kv.connector import Completion
from tandem.kv.connectors.tickets import Tickets

FIRST_PAUSE_S: Final = 50e-6
LONGEST_PAUSE_S: Final = 1e-3


def poll_by_looking(
    tickets: Tickets, look: Callable[[], bool], timeout_s: float
) -> list[Completion]:
    """What has ended; waits for the first. `look` ends tickets that are over, and says whether
    others go on: while none do, only another thread can end one."""
    waited_s, pause_s = 0.0, FIRST_PAUSE_S
    while True:
        going_on = look()
        left_s = max(timeout_s - waited_s, 0.0)
        pause_s = min(pause_s, left_s) if going_on else left_s
        found = tickets.poll(pause_s)
        waited_s += pause_s
        if found or waited_s >= timeout_s:
            return found
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
