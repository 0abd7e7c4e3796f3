"""The loop of a serving process is not held by what else the interpreter does."""

import gc
import sys

from tandem.live.processes.lifecycle import SWITCH_S, loop_runner


def test_what_a_process_was_made_of_is_not_looked_through_again():
    pool_books = [[block] for block in range(3)]
    interval_s = sys.getswitchinterval()
    with loop_runner() as runner:
        later = [[0]]
        seen = gc.get_objects()
        assert any(each is later for each in seen)
        assert not any(each is pool_books for each in seen)
        assert runner.run(_interval_s()) <= SWITCH_S
    sys.setswitchinterval(interval_s)


async def _interval_s() -> float:
    return sys.getswitchinterval()
