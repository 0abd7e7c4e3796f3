"""A short storm on real processes: clients that read, dawdle and leave, and a seed's worth of kills
and stops. `make chaos` has longer ones, on more shapes."""

import pytest

from tests.chaos.asks import catalogue
from tests.chaos.mishaps import Deed, Mishap, Victims, draw_mishaps
from tests.chaos.run import Weather, expected_of, one_storm
from tests.chaos.shapes import pace

SEED = 3
WEATHER = Weather(duration_s=3.0, rate=5.0)
MISHAPS = (
    Mishap(0.8, Deed.KILL, ("decode-0",)),
    Mishap(1.2, Deed.STOP, ("prefill-0",), 0.5),
    Mishap(2.4, Deed.KILL, ("gateway-1",)),
)


@pytest.fixture(scope="module")
def asks():
    return catalogue(SEED, 8, most_tokens=60)


def test_a_storm_costs_time_and_nothing_else(asks, small_cluster):
    outcome = one_storm(small_cluster, asks, expected_of(asks), MISHAPS, WEATHER)
    assert not outcome.broken, "\n".join(outcome.broken)
    assert len(outcome.done) == len(MISHAPS)
    assert outcome.finished


def test_a_seed_is_a_schedule_that_leaves_one_of_each_role_alone():
    victims = Victims(
        {"prefill": ("p0", "p1"), "decode": ("d0",), "gateway": ("g0", "g1"), "pool": ("pool-0",)},
        network=True,
    )
    seen = set()
    for seed in range(40):
        mishaps = draw_mishaps(seed, victims, pace(60.0, 3.0))
        assert mishaps == draw_mishaps(seed, victims, pace(60.0, 3.0))
        hit = {name for mishap in mishaps for name in mishap.victims}
        assert "d0" not in hit
        assert not {"p0", "p1"} <= hit and not {"g0", "g1"} <= hit
        seen |= {mishap.deed for mishap in mishaps} | hit
    assert {Deed.KILL, Deed.STOP, Deed.CUT, Deed.ISOLATE, "pool-0", "p0", "g1"} <= seen
    assert Deed.SPOIL not in seen
