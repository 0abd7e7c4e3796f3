"""A short storm on real processes: clients that read, dawdle and leave, and a seed's worth of kills
and stops. `make chaos` has longer ones, on more shapes."""

import pytest

from tests.chaos.live_faults import FaultKind, LiveFault, Victims, draw_faults
from tests.chaos.run import LoadLevel, expected_of, one_storm
from tests.chaos.shapes import pace
from tests.chaos.workload import catalogue

SEED = 3
LEVEL = LoadLevel(duration_s=3.0, rate=5.0)
FAULTS = (
    LiveFault(0.8, FaultKind.KILL, ("decode-0",)),
    LiveFault(1.2, FaultKind.STOP, ("prefill-0",), 0.5),
    LiveFault(2.4, FaultKind.KILL, ("gateway-1",)),
)


@pytest.fixture(scope="module")
def questions():
    return catalogue(SEED, 8, most_tokens=60)


def test_a_storm_costs_time_and_nothing_else(questions, small_cluster):
    outcome = one_storm(small_cluster, questions, expected_of(questions), FAULTS, LEVEL)
    assert not outcome.broken, "\n".join(outcome.broken)
    assert len(outcome.done) == len(FAULTS)
    assert outcome.finished


def test_a_seed_is_a_schedule_that_leaves_one_of_each_role_alone():
    victims = Victims(
        {"prefill": ("p0", "p1"), "decode": ("d0",), "gateway": ("g0", "g1"), "pool": ("pool-0",)},
        network=True,
    )
    seen = set()
    for seed in range(40):
        faults = draw_faults(seed, victims, pace(60.0, 3.0))
        assert faults == draw_faults(seed, victims, pace(60.0, 3.0))
        hit = {name for fault in faults for name in fault.victims}
        assert "d0" not in hit
        assert not {"p0", "p1"} <= hit and not {"g0", "g1"} <= hit
        seen |= {fault.kind for fault in faults} | hit
    assert {
        FaultKind.KILL,
        FaultKind.STOP,
        FaultKind.CUT,
        FaultKind.ISOLATE,
        "pool-0",
        "p0",
        "g1",
    } <= seen
    assert FaultKind.CORRUPT not in seen
