"""A worker is killed only when it worked, everybody gave it up, and its process still runs."""

from tandem.live.launching.vanished import LOOKS, Vanished
from tandem.messages.gateway import ClusterStatus
from tests.live.statuses import worker_status

PIDS = {"w-0": 10, "w-1": 11}


def status(*workers, lost=()):
    return ClusterStatus("g", 1.0, tuple(map(worker_status, workers)), 0, 0, 0, 0, tuple(lost))


BOTH = status("w-0", "w-1")
WITHOUT = status("w-1", lost=[("w-0", "silent for 10 s")])


def test_who_is_lost_though_the_process_runs_is_told_once():
    vanished = Vanished()
    assert vanished.look(PIDS, [BOTH]) == []
    told = [vanished.look(PIDS, [WITHOUT]) for _ in range(LOOKS + 2)]
    assert told == [[]] * (LOOKS - 1) + [[("w-0", "silent for 10 s")]] + [[]] * 2


def test_who_still_loads_or_is_not_in_anybodys_list_is_left_alone():
    vanished = Vanished()
    for _ in range(2 * LOOKS):
        # Lost before, and now starting again under another number; a gateway that is new.
        assert vanished.look(PIDS, [WITHOUT]) == []
    vanished.look(PIDS, [BOTH])
    for _ in range(2 * LOOKS):
        assert vanished.look(PIDS, [status()]) == []
    for _ in range(2 * LOOKS):
        assert vanished.look(PIDS | {"w-0": 20}, [WITHOUT]) == []


def test_one_gateway_that_knows_a_worker_is_enough():
    vanished = Vanished()
    vanished.look(PIDS, [BOTH])
    for _ in range(2 * LOOKS):
        assert vanished.look(PIDS, [WITHOUT, BOTH]) == []


def test_who_comes_back_begins_anew():
    vanished = Vanished()
    vanished.look(PIDS, [BOTH])
    for _ in range(3):
        for _ in range(LOOKS - 1):
            assert vanished.look(PIDS, [WITHOUT]) == []
        assert vanished.look(PIDS, [BOTH]) == []


def test_who_left_after_it_once_was_lost_is_left_alone():
    vanished = Vanished()
    old = ("w-0", "silent for 10 s")
    vanished.look(PIDS, [status("w-0", "w-1", lost=[old])])
    for _ in range(2 * LOOKS):
        assert vanished.look(PIDS, [status("w-1", lost=[old])]) == []
    again = [vanished.look(PIDS, [status("w-1", lost=[old, ("w-0", "x")])]) for _ in range(LOOKS)]
    assert again[-1] == [("w-0", "x")]
