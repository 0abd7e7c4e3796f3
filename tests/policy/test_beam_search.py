"""Beam search: the answers of the plain algorithm, and no step more than they need."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.policy.beam_search import BeamPlan, BeamSearch

VOCABULARY = 7
PROMPT_TOKENS = 3


def likeliest_after(seed: int, tokens: tuple[int, ...], flat: bool) -> list[tuple[int, float]]:
    """What a made-up model thinks may follow; of a `flat` one many are equally likely."""
    chance = random.Random(f"{seed} {tokens}")
    weights = [chance.choice((1, 2)) if flat else chance.random() ** 3 for _ in range(VOCABULARY)]
    logprobs = {token: math.log(w / sum(weights)) for token, w in enumerate(weights)}
    return sorted(logprobs.items(), key=lambda each: (-each[1], each[0]))


def naive_beams(plan: BeamPlan, seed: int, flat: bool) -> list[tuple[tuple[int, ...], float]]:
    """As vLLM has it: to the last step, and everything that has ended sorted at the end."""
    running, ended = [((), 0.0)], []
    for _ in range(plan.max_tokens):
        grown = []
        for tokens, total in running:
            for token, logprob in likeliest_after(seed, tokens, flat)[: 2 * plan.width]:
                into = ended if token in plan.end_token_ids else grown
                into.append(((*tokens, token), total + logprob))
        running = sorted(grown, key=lambda each: -each[1])[: plan.width]

    def score(found: tuple[tuple[int, ...], float]) -> float:
        tokens, total = found
        length = PROMPT_TOKENS + len(tokens) - (tokens[-1] in plan.end_token_ids)
        return total / length**plan.length_penalty

    best = sorted([*ended, *running], key=score, reverse=True)[: plan.width]
    return [(tokens, score((tokens, total))) for tokens, total in best]


def searched(plan: BeamPlan, seed: int, flat: bool) -> tuple[BeamSearch, int]:
    search, steps = BeamSearch(plan, PROMPT_TOKENS), 0
    while not search.is_over:
        search.advance([likeliest_after(seed, beam.tokens, flat) for beam in search.running])
        steps += 1
    return search, steps


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 7),
    st.sampled_from([1.0, 0.0, 2.5, -1.0]),
    st.sampled_from([frozenset(), frozenset({2}), frozenset({0, 5})]),
    st.integers(0, 1000),
    st.booleans(),
)
def test_the_beams_of_the_plain_algorithm(width, max_tokens, penalty, ends, seed, flat):
    plan = BeamPlan(width, max_tokens, penalty, ends)
    search, _ = searched(plan, seed, flat)
    found = [(beam.tokens, search.score(beam)) for beam in search.best()]
    assert found == naive_beams(plan, seed, flat)
    for beam in search.best():
        assert beam.is_ended == (beam.tokens[-1] in ends)
        assert math.isclose(beam.logprob_sum, sum(each.logprob for each in beam.logprobs))


def test_it_is_over_once_nothing_can_become_better():
    # Whatever goes on has lost too much to be made up for by length.
    tops = [(1, math.log(0.9)), (2, math.log(0.05)), (3, math.log(0.05))]
    plan = BeamPlan(1, 50, length_penalty=0.0, end_token_ids=frozenset({1}))
    search = BeamSearch(plan, PROMPT_TOKENS)
    search.advance([tops])
    assert search.is_over
    assert [beam.tokens for beam in search.best()] == [(1,)]
    # A longer one may still win where length counts for more.
    longer = BeamSearch(BeamPlan(1, 50, 10.0, frozenset({1})), PROMPT_TOKENS)
    longer.advance([tops])
    assert not longer.is_over


@pytest.mark.parametrize(("stops_early", "steps"), [(True, 1), (False, 4)])
def test_early_stopping_waits_for_no_better_answer(stops_early, steps):
    plan = BeamPlan(1, 4, 10.0, frozenset({0}), stops_early)
    search, done = BeamSearch(plan, PROMPT_TOKENS), 0
    while not search.is_over:
        search.advance([[(1, math.log(0.6)), (0, math.log(0.4))] for _ in search.running])
        done += 1
    assert done == steps
    assert len(search.best()[0].tokens) == steps


def test_what_is_kept_of_a_token():
    search = BeamSearch(BeamPlan(1, 2, alternatives=2), PROMPT_TOKENS)
    tops = [(4, -0.5), (6, -1.0), (5, -3.0)]
    search.advance([tops])
    (chosen,) = search.running[0].logprobs
    assert (chosen.logprob, chosen.rank, chosen.top) == (-0.5, 1, tuple(tops[:2]))
