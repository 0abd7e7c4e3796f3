"""Laws of the sliding tail: within a bucket of the exact quantile, and nothing older counts."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.admission.tail import GROWTH, SLICES, SlidingTail

WINDOW_NS = 6_000
RATIOS = st.lists(st.floats(0.02, 60.0), min_size=2, max_size=300)


@given(RATIOS, st.sampled_from([0.5, 0.99, 0.999]))
def test_a_quantile_is_that_of_all_within_one_bucket(ratios, share):
    tail = SlidingTail(WINDOW_NS)
    for ratio in ratios:
        tail.add(ratio, 100)
    exact = sorted(ratios)[int(share * (len(ratios) - 1))]
    assert exact <= tail.quantile(share, 100) <= exact * GROWTH * (1 + 1e-9)


@given(st.lists(st.tuples(st.integers(0, 3_000), st.floats(0.02, 60.0)), max_size=100))
def test_what_is_older_than_the_window_is_forgotten(steps):
    tail, now_ns, added = SlidingTail(WINDOW_NS), 0, []
    for gap_ns, ratio in steps:
        now_ns += gap_ns
        tail.add(ratio, now_ns)
        added.append(now_ns)
        slice_ns = WINDOW_NS // SLICES
        oldest = now_ns // slice_ns - SLICES
        assert tail.count(now_ns) == sum(at // slice_ns > oldest for at in added)
    assert tail.count(now_ns + WINDOW_NS) == 0


def test_one_late_request_is_no_tail_and_one_on_time_is_not_late():
    tail = SlidingTail(WINDOW_NS)
    for _ in range(40):
        tail.add(1.0, 0)
    tail.add(50.0, 0)
    assert tail.quantile(0.99, 0) == 1.0
    tail.add(50.0, 0)
    assert tail.quantile(0.99, 0) > 49
