"""Strategies and small facts that the tests of costs share."""

from hypothesis import strategies as st

from tandem.cost.worker import StepShape, StepTime


@st.composite
def step_shapes(draw):
    chunks = draw(st.lists(st.tuples(st.integers(0, 20_000), st.integers(2, 5_000)), max_size=3))
    decodes = draw(st.integers(0, 300))
    context = draw(st.integers(0, 8_000)) * decodes + decodes
    rows = draw(st.integers(0, decodes + len(chunks)))
    return StepShape(tuple(chunks), decodes, context, rows)


@st.composite
def more_work(draw):
    """A shape, and one with more of something and less of nothing."""
    less = draw(step_shapes())
    chunks = [
        (s + draw(st.integers(0, 500)), c + draw(st.integers(0, 500))) for s, c in less.chunks
    ]
    chunks += draw(st.lists(st.tuples(st.integers(0, 9_000), st.integers(2, 900)), max_size=1))
    decodes = less.decode_sequences + draw(st.integers(0, 40))
    context = less.decode_context_tokens + draw(st.integers(0, 90_000))
    rows = less.sampled_rows + draw(st.integers(0, 5))
    return less, StepShape(tuple(chunks), decodes, context, rows)


def assert_monotone(model: StepTime, pair: tuple[StepShape, StepShape]) -> None:
    less, more = pair
    # Sums in another order may differ in the last bits.
    assert model.seconds(less) <= model.seconds(more) * (1 + 1e-12)


def assert_decodes_agree(model: StepTime, sequences: int, context_tokens: int) -> None:
    shape = StepShape((), sequences, context_tokens, sequences)
    assert model.decode_seconds(sequences, context_tokens) == model.seconds(shape)
