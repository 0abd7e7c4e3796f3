"""A storm in the twin: faults of every kind, and no law broken. `make chaos` has more."""

import pytest

from tests.chaos.accelerated import FAULTS_A_RUN, play_seeds

# The first have met every kind.
SEEDS = 32
KINDS = 22


def test_no_storm_breaks_a_law():
    tally = play_seeds(0, SEEDS)
    assert not tally.broken, tally.broken
    assert tally.requests
    assert len(tally.faults) == KINDS, tally.faults
    assert tally.faults.total() > SEEDS * FAULTS_A_RUN // 2


@pytest.mark.parametrize("seed", [1160, 1337])
def test_storms_that_broke_a_law_once(seed):
    """A fetch of which one part (the pool's) was over before the others had begun never ended."""
    assert not play_seeds(seed, 1).broken
