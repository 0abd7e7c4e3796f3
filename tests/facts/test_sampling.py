"""Sampling parameters: a wrong value names its field; seeds of parallel answers differ."""

import math

import pytest

from tandem.facts.errors import InvalidRequest
from tandem.facts.sampling import SEED_LIMIT, SamplingParameters


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 2.0),
        ("typical_p", 0.0),
        ("typical_p", 1.1),
        ("xtc_probability", 1.5),
        ("xtc_threshold", -0.1),
        ("dry_multiplier", -1.0),
        ("dry_base", 0.5),
        ("dry_allowed_length", 0),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", tuple(range(300))),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3.0),
        ("seed", -1),
        ("seed", SEED_LIMIT),
        ("max_tokens", 0),
        ("min_tokens", 17),
        ("top_logprobs", 21),
        ("logit_bias", ((1, 101.0),)),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", tuple((token, 0.0) for token in range(2000))),
        ("stop_token_ids", tuple(range(100))),
    ],
)
def test_a_wrong_value_names_its_field(field, value):
    with pytest.raises(InvalidRequest) as refusal:
        SamplingParameters(**{field: value})
    assert refusal.value.field == field


def test_parallel_answers_have_seeds_of_their_own():
    sampling = SamplingParameters(seed=SEED_LIMIT - 1)
    seeds = {sampling.seed_of_choice(choice) for choice in range(100)}
    neighbours = {SamplingParameters(seed=0).seed_of_choice(choice) for choice in range(100)}
    assert sampling.seed_of_choice(0) == sampling.seed
    assert len(seeds | neighbours) == 200
    assert all(0 <= seed < SEED_LIMIT for seed in seeds)
