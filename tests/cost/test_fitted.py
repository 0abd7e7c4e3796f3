"""The fit finds what made the samples, and never less than nothing."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cost.fitted import (
    COEFFICIENTS,
    FittedStepTime,
    TimedStep,
    fit,
    from_fields,
    solve,
    to_fields,
)
from tandem.cost.worker import StepShape
from tandem.facts.errors import InvalidConfiguration
from tests.cost.shapes import assert_decodes_agree, assert_monotone, more_work, step_shapes

GRID = [
    *(StepShape(((s, c),), sampled_rows=r) for s in (0, 512) for c in (16, 256) for r in (0, 1)),
    *(StepShape((), n, n * c, n) for n in (1, 8, 64) for c in (16, 1024)),
]
coefficients = st.sampled_from([0.0, 1e-4, 3e-4])
step_times = st.builds(FittedStepTime, st.just(2e-3), *[coefficients] * 5)


def error(model: FittedStepTime, samples: list[TimedStep]) -> float:
    return sum((model.seconds(s.shape) / s.seconds - 1) ** 2 for s in samples)


def test_the_server_of_queueing_theory():
    server = FittedStepTime(fixed_s=0.010, token_s=1e-4)
    assert server.seconds(StepShape(((0, 500),), sampled_rows=1)) == 0.010 + 500 * 1e-4
    assert server.seconds(StepShape()) == 0.0


@given(step_times)
def test_a_fit_finds_the_model_behind_exact_samples(model):
    fitted = fit([TimedStep(shape, model.seconds(shape)) for shape in GRID])
    for name in COEFFICIENTS:
        assert getattr(fitted, name) == pytest.approx(getattr(model, name), rel=1e-4, abs=1e-9)


@given(st.lists(st.floats(1e-4, 1.0), min_size=len(GRID), max_size=len(GRID)))
def test_no_neighbour_of_a_fit_is_better(seconds):
    samples = [TimedStep(shape, s) for shape, s in zip(GRID, seconds, strict=True)]
    fitted = fit(samples)
    best = error(fitted, samples)
    for name in COEFFICIENTS:
        value = getattr(fitted, name)
        assert value >= 0
        for step in (-1e-3, 1e-3):
            neighbour = replace(fitted, **{name: max(0.0, value + step * (value or 1e-6))})
            assert error(neighbour, samples) >= best * (1 - 1e-6)


@given(step_shapes(), step_times)
def test_a_step_is_the_sum_of_its_counts(shape, model):
    pairs = sum(s * c + c * (c + 1) // 2 for s, c in shape.chunks)
    counts = (
        1 if shape.tokens else 0,
        shape.tokens,
        pairs,
        shape.decode_sequences,
        shape.decode_context_tokens,
        shape.sampled_rows,
    )
    expected = sum(n * getattr(model, c) for n, c in zip(counts, COEFFICIENTS, strict=True))
    assert model.seconds(shape) == pytest.approx(expected)


@given(more_work(), step_times)
def test_more_work_never_takes_less_time(pair, model):
    assert_monotone(model, pair)


@given(step_times, st.integers(1, 500), st.integers(0, 10**6))
def test_quick_decodes_are_the_same_decodes(model, sequences, context):
    assert_decodes_agree(model, sequences, context)


@given(step_times)
def test_a_model_survives_json(model):
    assert from_fields(to_fields(model), "file") == model


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"tokens_s": 1.0}, "profile: unknown field 'tokens_s'; expected context_token_s"),
        ({"token_s": -1.0}, "profile: token_s is -1.0; expected 0 or more"),
        ({"token_s": "1"}, "profile: token_s is '1'"),
    ],
)
def test_a_bad_file_is_refused(values, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        from_fields(values, "profile")


def test_nothing_timed_is_refused():
    with pytest.raises(InvalidConfiguration, match="at least one step"):
        fit([TimedStep(StepShape(), 1.0)])


def test_elimination():
    assert solve([[0.0, 2.0], [4.0, 1.0]], [2.0, 9.0]) == [2.0, 1.0]
    assert solve([[1.0, 2.0], [2.0, 4.0]], [1.0, 2.0]) is None
    assert {part.name for part in fields(FittedStepTime)} == {*COEFFICIENTS, "stages"}
