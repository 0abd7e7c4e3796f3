"""Dynamic batching: how many of the first texts are encoded together."""

import pytest

from tandem.policy.dynamic_batching import DynamicBatching

MS = 1_000_000
PREFERRED = DynamicBatching(8, 100, (2, 4), 5 * MS)
PLAIN = DynamicBatching(8, 100, (), 5 * MS)


@pytest.mark.parametrize(
    ("batching", "tokens", "waited_ms", "size"),
    [
        (PLAIN, [], 9, 0),
        (PLAIN, [1] * 7, 0, 0),
        (PLAIN, [1] * 7, 5, 7),
        # A full batch waits for nobody: of texts, or of tokens.
        (PLAIN, [1] * 9, 0, 8),
        (PLAIN, [50, 50, 1], 0, 2),
        # One text may be longer than a batch.
        (PLAIN, [500, 1], 0, 1),
        (PLAIN, [500], 0, 0),
        (PLAIN, [500], 5, 1),
        # The largest preferred size that there is.
        (PREFERRED, [1], 0, 0),
        (PREFERRED, [1] * 3, 0, 2),
        (PREFERRED, [1] * 7, 0, 4),
        (PREFERRED, [1] * 8, 0, 8),
        # Whose delay is over goes with all others.
        (PREFERRED, [1] * 7, 5, 7),
        (PREFERRED, [60, 30, 20], 0, 2),
    ],
)
def test_batch_sizes(batching, tokens, waited_ms, size):
    assert batching.batch_size(tokens, waited_ms * MS) == size


def test_without_a_delay_nobody_waits():
    assert DynamicBatching(preferred_batch_sizes=(8,)).batch_size([1], 0) == 1


@pytest.mark.parametrize(
    "wishes",
    [
        {"max_batch_size": 0},
        {"max_batch_tokens": 0},
        {"max_queue_delay_ns": -1},
        {"max_batch_size": 4, "preferred_batch_sizes": (5,)},
        {"preferred_batch_sizes": (0,)},
    ],
    ids=str,
)
def test_wishes_that_cannot_be_are_refused(wishes):
    with pytest.raises(ValueError, match="must"):
        DynamicBatching(**wishes)
