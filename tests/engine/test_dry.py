"""DRY: what tokens cost after a text, as llama.cpp and text-generation-webui define it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.engine.dry import dry_penalties
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.kernels.faces import reference_kernels
from tandem.kernels.repetition import repeated_suffixes
from tests.engine.tiny import Arithmetic, Bench, Shape, naive_answer, naive_dry, tiny_decoder

GREEDY = SamplingParameters(temperature=0.0, max_tokens=8)


def penalties(tokens: list[int], **parameters) -> dict[int, float]:
    sampling = SamplingParameters(**({"dry_multiplier": 2.0, "dry_base": 3.0} | parameters))
    tokens_N = torch.tensor(tokens, dtype=torch.int32)
    ids, costs = dry_penalties(tokens_N, sampling, repeated_suffixes)
    return dict(zip(ids.tolist(), costs.tolist(), strict=True))


A, B, C, Y = 1, 2, 3, 9
# The example in llama.cpp's source.
EXAMPLE = [A, B, C, C, B, C, Y, A, B, C]


@pytest.mark.parametrize(
    ("parameters", "costs"),
    [
        # After "a b c" came c, after "b c" came y, after "c" came b.
        ({}, {C: 2.0 * 3, Y: 2.0}),
        ({"dry_allowed_length": 1}, {C: 2.0 * 9, Y: 2.0 * 3, B: 2.0}),
        ({"dry_allowed_length": 4}, {}),
        ({"dry_base": 1.0}, {C: 2.0, Y: 2.0}),
        # Nothing is matched across a breaker, which costs nothing itself.
        ({"dry_sequence_breakers": (A,)}, {C: 2.0, Y: 2.0}),
        ({"dry_sequence_breakers": (A,), "dry_allowed_length": 1}, {C: 6.0, Y: 6.0, B: 2.0}),
        ({"dry_sequence_breakers": (Y,)}, {C: 2.0 * 3}),
        ({"dry_sequence_breakers": (C,)}, {}),
    ],
)
def test_known_costs(parameters, costs):
    assert penalties(EXAMPLE, **parameters) == pytest.approx(costs)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.integers(1, 4),
    st.sampled_from([(), (0,), (1, 3)]),
)
def test_the_naive_costs(tokens, allowed, breakers):
    parameters = {"dry_allowed_length": allowed, "dry_sequence_breakers": breakers}
    sampling = SamplingParameters(dry_multiplier=2.0, dry_base=3.0, **parameters)
    wanted = {token: naive_dry(tokens, token, sampling) for token in range(4)}
    found = penalties(tokens, **parameters)
    assert found == pytest.approx({token: cost for token, cost in wanted.items() if cost})


def test_a_long_repetition_costs_no_more_than_a_number_holds():
    (cost,) = penalties([5] * 3000, dry_multiplier=100.0, dry_base=100.0).values()
    assert 1e25 < cost < torch.finfo(torch.float32).max


def test_it_looks_back_as_far_as_it_is_told():
    arithmetic = Arithmetic(reference_kernels(), "float64")
    decoder = tiny_decoder(arithmetic)
    prompt = tuple(naive_answer(decoder, arithmetic, Request("a", (5, 6), GREEDY)).tokens) * 2
    answers = {}
    for back in (-1, 0, 3, 10, 1000):
        sampling = replace(GREEDY, dry_multiplier=50.0, dry_penalty_last_n=back)
        request = Request(f"back {back}", prompt, sampling)
        bench = Bench(decoder, arithmetic, Shape())
        bench.ask(request)
        bench.drain()
        answers[back] = tuple(bench.answers[request.request_id])
        assert list(answers[back]) == naive_answer(decoder, arithmetic, request).tokens
    assert answers[-1] == answers[1000]
    # Without DRY, or with three tokens to look at, the model says again what it has said.
    assert answers[0] == answers[3] != answers[-1]
