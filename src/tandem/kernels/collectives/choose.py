"""Which way of summing is faster at a size? Measured by bench/collectives.py."""

from typing import Literal

# Between two ranks both ways move the same bytes, and one-shot waits once instead of twice. Among
# more ranks it moves `ranks / 2` times as many, which counts beyond this size.
ONE_SHOT_BYTES = 1 << 19


def choose_all_reduce(partial_bytes: int, ranks: int) -> Literal["one-shot", "two-shot"]:
    """For partial sums of so many bytes a rank. Both give the same bits, so the choice shows in
    nothing but time."""
    if ranks <= 2 or partial_bytes <= ONE_SHOT_BYTES:
        return "one-shot"
    return "two-shot"
