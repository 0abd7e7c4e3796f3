"""Laws of a cluster whose operators change policies, classes, weights, bounds and the planner while
requests wait and run: each request ends once, with the tokens of the ledger, books agree, and a
journal of it decides the same."""

from collections import Counter

import pytest

from tests.observe.recorded_cluster import Recorded
from tests.seeds import seeds
from tests.twin.chance_changes import ChangedRun
from tests.twin.chance_draws import World

SEEDS = seeds(60, 1000)


@pytest.mark.parametrize("plans", [False, True])
def test_each_request_gets_its_answer_once_whatever_is_applied(plans):
    seen: Counter[str] = Counter()
    for seed in range(SEEDS // 2 if plans else SEEDS):
        seen.update(ChangedRun(seed, World(plans=plans)).play().check().seen)
    rare = ("changed while some waited", "changed while some ran", "taken up again", "finished")
    assert all(seen[what] >= (3 if plans else 10) for what in rare), seen


class Named(Recorded):
    plain_names = True


def test_a_journal_with_changes_in_it_decides_the_same():
    changed = 0
    for seed in range(SEEDS // 2):
        cluster = ChangedRun(seed, World(), Named).play().cluster
        assert cluster.replay_all()
        changed += sum(len(recording.applied) for recording in cluster.recordings)
    assert changed > SEEDS // 2
