"""Dynamic batching: when texts that wait for an encoder are computed together, and how many (as
Triton Inference Server means it: preferred sizes, and a longest delay in the queue).

One pass over many texts takes hardly longer than over one, as long as weights are what it waits
for. So it can pay to let the first wait for others; never longer than the delay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """At most `max_batch_size` texts of `max_batch_tokens` together, or one longer text alone.

    As soon as there are as many as a preferred size, a batch of the largest such is formed; without
    preferred sizes as soon as it is full. Otherwise it is formed of what there is once the first
    has waited `max_queue_delay_ns`: 0 never waits for others. Raises `ValueError` for what is out
    of range.
    """

    max_batch_size: int = 32
    max_batch_tokens: int = 8192
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_ns: int = 0

    def __post_init__(self) -> None:
        if self.max_batch_size < 1 or self.max_batch_tokens < 1:
            raise ValueError("max_batch_size and max_batch_tokens must be at least 1")
        if self.max_queue_delay_ns < 0:
            raise ValueError("max_queue_delay must not be negative")
        if any(not 1 <= size <= self.max_batch_size for size in self.preferred_batch_sizes):
            raise ValueError(f"preferred_batch_sizes must be 1 to {self.max_batch_size}")

    def batch_size(self, tokens: Sequence[int], waited_ns: int) -> int:
        """How many of the first of these texts, of so many tokens each, are to be encoded now; 0:
        wait for others. One of those who wait has done so for `waited_ns`."""
        if not tokens:
            return 0
        candidates = tokens[: self.max_batch_size]
        sums = accumulate(candidates)
        fitting = max(1, sum(1 for _ in takewhile(self.max_batch_tokens.__ge__, sums)))
        is_full = fitting == self.max_batch_size or fitting < len(candidates)
        if is_full or waited_ns >= self.max_queue_delay_ns:
            return fitting
        return max((size for size in self.preferred_batch_sizes if size <= fitting), default=0)
