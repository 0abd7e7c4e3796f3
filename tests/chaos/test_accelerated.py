"""A storm in the twin: faults of every kind, and no law broken. `make chaos` has more."""

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
