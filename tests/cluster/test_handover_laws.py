"""Laws of two workers that hand requests to each other: whoever computes, holds, imports, loses or
gives up what and when, each request gets its own answer and nothing stays behind."""

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.ledger_engine import answer
from tests.cluster.pair import Journey, Pair
from tests.cluster.world import CONTEXT_TOKENS, World, configs, requests


def test_any_mix_of_hand_overs_gives_each_request_its_own_answer():
    seen: Counter[str] = Counter()

    @settings(max_examples=250)
    @given(
        configs(), configs(), st.lists(requests(), min_size=1, max_size=10), st.integers(0, 1 << 32)
    )
    def mix(first, second, wanted, seed):
        pair = Pair([World.of(first), World.of(second)], Random(seed))
        for index, request in enumerate(wanted):
            pair.journeys.append(Journey(replace(request, request_id=str(index))))
            for _ in range(pair.chance.randrange(20)):
                pair.turn()
        for _ in range(40):
            pair.turn()
        pair.settle()
        for journey in pair.journeys:
            expected = answer(
                journey.request.prompt_tokens, journey.request.sampling, CONTEXT_TOKENS
            )
            if journey.aborted:
                assert journey.output == expected[: len(journey.output)]
            else:
                assert journey.output == expected
        for world in pair.worlds:
            pair.seen["preempted"] += world.machine.planner.preemptions
        seen.update(pair.seen)

    mix()
    often = ("held", "pushed", "pulled", "whole", "in part", "cancelled", "preempted", "copied")
    assert min(seen[what] for what in often) > 50
    assert seen["lost to preemption"] > 10
