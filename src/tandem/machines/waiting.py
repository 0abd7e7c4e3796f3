"""The sequences that wait for a slot, by rank, and how much prefill they stand for."""

from bisect import insort
from collections.abc import Iterator

from tandem.machines.sequence import Sequence


class WaitingSequences:
    """`requests` of them have prompt tokens to be computed here, about `prefill_tokens` in all: as
    estimated when they began to wait. Those whose whole prompt comes from another worker are
    counted by whoever sent them."""

    def __init__(self) -> None:
        self.requests = 0
        self.prefill_tokens = 0
        self._by_rank: list[Sequence] = []
        self._counted: dict[Sequence, int] = {}

    def __len__(self) -> int:
        return len(self._by_rank)

    def __iter__(self) -> Iterator[Sequence]:
        """In order of rank, as it is now: whoever looks may remove the one that it looks at."""
        return iter(tuple(self._by_rank))

    @property
    def first(self) -> Sequence:
        return self._by_rank[0]

    def add(self, sequence: Sequence) -> None:
        insort(self._by_rank, sequence, key=_rank)
        tokens = prefill_tokens_of(sequence)
        self._counted[sequence] = tokens
        self.prefill_tokens += tokens
        self.requests += tokens > 0

    def remove(self, sequence: Sequence) -> None:
        self._by_rank.remove(sequence)
        tokens = self._counted.pop(sequence)
        self.prefill_tokens -= tokens
        self.requests -= tokens > 0


def prefill_tokens_of(sequence: Sequence) -> int:
    """Tokens that a sequence which does not run yet will have computed here; at least the last
    known one, whose logits draw the next. 0 when its whole prompt comes from another worker."""
    come_tokens = sequence.import_tokens
    if come_tokens >= len(sequence.request.prompt_tokens):
        return 0
    known_tokens = max(come_tokens, sequence.likely_cached_tokens, sequence.stay.scheduled)
    return max(1, len(sequence.tokens) - known_tokens)


def _rank(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.rank
