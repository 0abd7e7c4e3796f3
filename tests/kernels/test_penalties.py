"""Penalties for tokens that were said: both faces, bit for bit, and the plain meaning."""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.faces import Kernels
from tandem.kernels.native import KernelArgumentError
from tandem.kernels.penalties import PenaltyRows

VOCABULARY = 30
FACTORS = st.tuples(
    st.sampled_from([1.0, 1.3, 0.8]),
    st.sampled_from([0.0, 0.3, -0.2]),
    st.sampled_from([0.0, 0.7, -2.0]),
)
SAID = st.lists(st.integers(0, VOCABULARY - 1), max_size=40)


def penalty_rows(
    rows: list[int], said: list[list[int]], prompts: list[int], factors
) -> PenaltyRows:
    starts = torch.tensor([0, *map(len, said)]).cumsum(0)
    return PenaltyRows(
        rows=torch.tensor(rows, dtype=torch.int64),
        tokens=torch.tensor(list(chain(*said)), dtype=torch.int32),
        starts=starts,
        answers=starts[:-1] + torch.tensor(prompts, dtype=torch.int64),
        factors=torch.tensor(factors, dtype=torch.float32).view(len(rows), 3),
    )


def plainly(logit: float, token: int, said: list[int], prompt: int, factors) -> float:
    repetition, frequency, presence = factors
    if token in said:
        logit = logit / repetition if logit > 0 else logit * repetition
    times = said[prompt:].count(token)
    return logit - times * frequency - (presence if times else 0.0)


@settings(max_examples=100)
@given(data=st.data())
def test_both_faces_penalise_what_was_said(
    native: Kernels, reference: Kernels, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, 5), unique=True, max_size=4))
    said = [data.draw(SAID) for _ in rows]
    prompts = [data.draw(st.integers(0, len(each))) for each in said]
    factors = [data.draw(FACTORS) for _ in rows]
    logits_RV = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(len(rows)))
    penalties = penalty_rows(rows, said, prompts, factors)
    by_native, by_reference = logits_RV.clone(), logits_RV.clone()
    native.penalise(by_native, penalties)
    reference.penalise(by_reference, penalties)
    assert torch.equal(by_native, by_reference)
    wanted = logits_RV.double()
    for row, tokens, prompt, factor in zip(rows, said, prompts, factors, strict=True):
        for token in range(VOCABULARY):
            wanted[row, token] = plainly(float(wanted[row, token]), token, tokens, prompt, factor)
    torch.testing.assert_close(by_native.double(), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("face", ["native", "reference"])
def test_shapes_that_do_not_belong_together_are_refused(
    face: str, request: pytest.FixtureRequest
) -> None:
    kernels: Kernels = request.getfixturevalue(face)
    good = penalty_rows([0], [[1, 2]], [1], [(1.1, 0.0, 0.0)])
    for broken in (
        replace(good, starts=torch.tensor([0])),
        replace(good, answers=torch.tensor([0, 1])),
        replace(good, factors=torch.ones(1, 2)),
    ):
        with pytest.raises(KernelArgumentError, match="penalties"):
            kernels.penalise(torch.zeros(1, VOCABULARY), broken)


def test_long_answers_share_the_threads(native: Kernels, two_threads: None) -> None:
    generator = torch.Generator().manual_seed(1)
    said = torch.randint(0, VOCABULARY, (8, 3000), generator=generator).tolist()
    penalties = penalty_rows(list(range(8)), said, [9] * 8, [(1.2, 0.1, 0.4)] * 8)
    logits_RV = torch.randn(8, VOCABULARY, generator=generator)
    two, one = logits_RV.clone(), logits_RV.clone()
    native.penalise(two, penalties)
    torch.set_num_threads(1)
    native.penalise(one, penalties)
    assert torch.equal(two, one)
