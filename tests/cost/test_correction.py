"""Corrected costs: the factors, their words, and that more work never takes less time."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.cost.correction import CorrectedStepTime, corrected
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, StepShape, WorkerCost
from tandem.facts.correction import UNCORRECTED, Correction

LISTED = FittedStepTime(0.01, 1e-4, 1e-8, 1e-3, 1e-7, 1e-5)
COST = WorkerCost(LISTED, 10.0, 64, network=LinkCost(1e6, 1e-3))
FACTORS = st.floats(0.125, 8.0)
CHUNKS = st.lists(st.tuples(st.integers(0, 5000), st.integers(2, 500)), max_size=3)


def test_costs_without_a_correction_are_the_listed_ones():
    assert corrected(COST, UNCORRECTED) is COST


def test_each_factor_has_its_own_seconds():
    cost = corrected(COST, Correction(decode=2.0, prefill=4.0, network=8.0))
    assert cost.decode_seconds(3, 900) == 2 * COST.decode_seconds(3, 900)
    assert cost.prefill_seconds(50) == 4 * COST.prefill_seconds(50)
    assert cost.transfer_seconds(5000) == 8 * COST.transfer_seconds(5000)


@given(FACTORS, FACTORS, CHUNKS, st.integers(1, 50), st.integers(0, 9000))
def test_more_work_never_takes_less_time(decode, prefill, chunks, decodes, context_tokens):
    step_time = CorrectedStepTime(LISTED, decode, prefill)
    shape = StepShape((), decodes, context_tokens, decodes)
    seconds = step_time.seconds(shape)
    assert seconds == step_time.decode_seconds(decodes, context_tokens)
    for end in range(1, len(chunks) + 1):
        more_s = step_time.seconds(StepShape(tuple(chunks[:end]), decodes, context_tokens, decodes))
        assert more_s >= seconds
        seconds = more_s


def test_a_correction_is_said_in_words():
    assert str(UNCORRECTED) == ""
    assert str(Correction(decode=3.9, prefill=3.9)) == "steps 3.9x slower than listed"
    words = str(Correction(prefill=0.5, network=8.0, first_token_s=0.0153))
    assert words == (
        "prefill steps 2x faster than listed, KV transfers 8x slower than listed, "
        "first token 15.3 ms later"
    )
