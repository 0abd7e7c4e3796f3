"""When the answer of the smaller model of a cascade counts."""

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.cascade import Confidence, ConfidenceFloor

LOGPROBS = st.lists(st.floats(-20, 0), min_size=1, max_size=30)


def least_of(logprobs: list[float], window: int) -> float:
    """By definition: every stretch, one after the other."""
    width = min(window, len(logprobs))
    stretches = [logprobs[i : i + width] for i in range(len(logprobs) - width + 1)]
    return min(exp(sum(each) / width) for each in stretches)


@given(LOGPROBS, st.integers(1, 8), st.floats(0, 1), st.integers(1, 5))
def test_the_least_sure_stretch_decides_however_the_tokens_come(logprobs, window, floor, portion):
    confidence = Confidence(ConfidenceFloor(floor, window))
    counted = [
        confidence.add(logprobs[begin : begin + portion])
        for begin in range(0, len(logprobs), portion)
    ]
    ended = confidence.end()
    assert confidence.least == pytest.approx(least_of(logprobs, window), rel=1e-9)
    assert ended == (confidence.least >= floor)
    # What does not count will not again: it need not be computed to its end.
    assert counted == sorted(counted, reverse=True)
    assert ended or floor != 0


def test_a_sure_sentence_around_a_guess_is_a_guess():
    sure, guess = [log(0.99)] * 40, [log(0.2), log(0.3)]
    confidence = Confidence(ConfidenceFloor(floor=0.6, window_tokens=2))
    assert confidence.add(sure)
    assert not confidence.add(guess)
    assert not confidence.add(sure)
    assert not confidence.end()


def test_a_short_answer_is_one_stretch():
    confidence = Confidence(ConfidenceFloor(floor=0.6, window_tokens=8))
    assert confidence.add([log(0.5)])
    assert not confidence.end()


@pytest.mark.parametrize("terms", [{"floor": 1.1}, {"floor": -0.1}, {"window_tokens": 0}])
def test_impossible_terms_are_refused(terms):
    with pytest.raises(InvalidConfiguration, match="cascade"):
        ConfidenceFloor(**terms)
