"""A storm on pure machines: faults of every kind, and no law broken. `make chaos` has more."""

from tests.chaos.accelerated import play
from tests.chaos.stormy_cluster import KINDS

# The first have met every kind; 77 had an operator wait for ever after a partition.
SEEDS = ((0, 20), (77, 1))


def test_no_storm_breaks_a_law():
    for first_seed, seeds in SEEDS:
        tally = play(first_seed, seeds)
        assert not tally.broken
        assert tally.requests
        if seeds > 1:
            assert all(tally.faults[kind] for kind in KINDS if kind != "copies cut off")
            assert sum(tally.faults.values()) > 60
