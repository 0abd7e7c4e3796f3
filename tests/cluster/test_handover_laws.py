"""Laws of two workers that hand requests to each other: whoever computes, holds, imports, loses or
gives up what and when, each request gets its own answer and nothing stays behind."""

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.ledger_worker import LedgerWorker, check_answer, configs, requests
from tests.cluster.worker_pair import PairRequest, WorkerPair


def test_any_mix_of_hand_overs_gives_each_request_its_own_answer():
    seen: Counter[str] = Counter()

    @settings(max_examples=250)
    @given(
        configs(), configs(), st.lists(requests(), min_size=1, max_size=10), st.integers(0, 1 << 32)
    )
    def mix(first, second, wanted, seed):
        pair = WorkerPair([LedgerWorker.of(first), LedgerWorker.of(second)], Random(seed))
        for index, request in enumerate(wanted):
            pair.requests.append(PairRequest(replace(request, request_id=str(index))))
            for _ in range(pair.chance.randrange(20)):
                pair.turn()
        for _ in range(40):
            pair.turn()
        pair.settle()
        for one in pair.requests:
            check_answer(one.request, one.output, whole=not one.aborted)
        for at in pair.workers:
            pair.seen["preempted"] += at.machine.planner.preemptions
            pair.seen["drafts kept"] += at.engine.kept_drafts
            pair.seen["drafts lost"] += at.engine.lost_drafts
        speculating = sum(at.machine.drafting is not None for at in pair.workers)
        if pair.seen["held"]:
            pair.seen[f"held, {speculating} speculating"] += 1
        seen.update(pair.seen)

    mix()
    often = ("held", "pushed", "pulled", "whole", "in part", "cancelled", "preempted", "copied")
    assert min(seen[what] for what in often) > 50
    assert seen["lost to preemption"] > 10
    assert min(seen["drafts kept"], seen["drafts lost"]) > 50
    assert min(seen[f"held, {count} speculating"] for count in range(3)) > 10
