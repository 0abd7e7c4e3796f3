"""The waiting queue of a worker: by rank, turns by account, and the prefill tokens it stands
for."""

from bisect import insort
from collections.abc import Iterator

from tandem.cluster.worker.sequence import Sequence
from tandem.facts.fair_shares import FairShares
from tandem.facts.request import Request
from tandem.policy.batching import NEVER_NS, Rank
from tandem.policy.qos.fair_queue import Turns


class WaitingSequences:
    """`requests` of them have prompt tokens to be computed here, about `prefill_tokens` in all: as
    estimated when they began to wait. Those whose whole prompt comes from another worker are
    counted by whoever sent them. Accounts take turns, those of one account by their deadlines, and
    where there are too many, the newest of whoever has most gives way."""

    def __init__(self) -> None:
        self.requests = 0
        self.prefill_tokens = 0
        self._by_rank: list[Sequence] = []
        self._counted: dict[Sequence, int] = {}
        self._turns = Turns()
        self._arrivals = 0
        # Those that nothing was done for yet.
        self._fresh: FairShares[Sequence] = FairShares()
        # Those with a deadline.
        self._hurried = 0

    def __len__(self) -> int:
        return len(self._by_rank)

    def __iter__(self) -> Iterator[Sequence]:
        """In order of rank, as it is now: whoever looks may remove the one that it looks at."""
        return iter(tuple(self._by_rank))

    @property
    def first(self) -> Sequence:
        return self._by_rank[0]

    def rank_of(self, request: Request) -> Rank:
        """Of a request that arrives now."""
        self._arrivals += 1
        return (request.priority, self._turns.next_of(request.account), self._arrivals)

    def gives_way(self, request: Request) -> Sequence | None:
        """Who goes so that this one may wait; None where its own account has most already."""
        account = self._fresh.gives_way(request.account)
        return None if account is None else self._fresh.newest(account)

    def admit(self, sequence: Sequence) -> None:
        """It waits no more: its turn has come."""
        self._turns.taken(sequence.rank[1])
        self.remove(sequence)

    def add(self, sequence: Sequence) -> None:
        insort(self._by_rank, sequence, key=_rank)
        self._hurried += sequence.due_ns < NEVER_NS
        tokens = prefill_tokens_of(sequence)
        self._counted[sequence] = tokens
        self.prefill_tokens += tokens
        self.requests += tokens > 0
        if sequence.untouched:
            self._fresh.add(sequence, sequence.request.account)
            if self._hurried:
                self._order_by_deadline(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._by_rank.remove(sequence)
        self._hurried -= sequence.due_ns < NEVER_NS
        self._fresh.discard(sequence)
        tokens = self._counted.pop(sequence)
        self.prefill_tokens -= tokens
        self.requests -= tokens > 0

    def _order_by_deadline(self, newcomer: Sequence) -> None:
        """The account of the newcomer uses its turns for what is due first (earliest deadline
        first, which keeps all deadlines where any order does). Nobody else's turn changes."""
        account, priority = newcomer.account, newcomer.rank[0]
        mates = [
            each
            for each in self._by_rank
            if each.account == account and each.rank[0] == priority and each.untouched
        ]
        ranks = [each.rank for each in mates]
        mates.sort(key=lambda each: each.due_ns)
        for each, rank in zip(mates, ranks, strict=True):
            each.rank = rank
        self._by_rank.sort(key=_rank)


def prefill_tokens_of(sequence: Sequence) -> int:
    """Tokens that a sequence which does not run yet will have computed here; at least the last
    known one, whose logits draw the next. 0 when its whole prompt comes from another worker."""
    come_tokens = sequence.import_tokens
    if come_tokens >= len(sequence.request.prompt_tokens):
        return 0
    computed_tokens = max(
        come_tokens, sequence.prefix_hit.likely_cached_tokens, sequence.residency.scheduled
    )
    return max(1, sequence.known_tokens - computed_tokens)


def _rank(sequence: Sequence) -> Rank:
    return sequence.rank
