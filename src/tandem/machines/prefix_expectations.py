"""Prefixes that workers are about to hold, because a request with them was just sent there.

Blocks are reported when they are full, which is too late for a burst of requests with one prompt:
the second would be routed before the first has left a trace.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tandem.machines.prefix_runs import common_blocks


class _Expectation(NamedTuple):
    expiry_ns: int
    worker: str
    chain: tuple[bytes, ...]


class Expectations:
    """Chains with a time to live. An equal hash means an equal prefix before it, so the common
    prefix of two chains is found by bisection and no block needs an entry of its own: to expect a
    chain takes the same time whatever its length."""

    def __init__(self, lifetime_ns: int) -> None:
        self._lifetime_ns = lifetime_ns
        self._in_order: deque[_Expectation] = deque()
        # By the first block of the chain: others share nothing with it.
        self._by_first: dict[bytes, deque[_Expectation]] = {}

    def add(self, worker: str, chain: Sequence[bytes], now_ns: int) -> None:
        """`now_ns` never goes back."""
        self._expire(now_ns)
        if chain:
            expected = _Expectation(now_ns + self._lifetime_ns, worker, tuple(chain))
            self._in_order.append(expected)
            self._by_first.setdefault(chain[0], deque()).append(expected)

    def match(self, chain: Sequence[bytes], now_ns: int) -> Iterator[tuple[str, int]]:
        """Workers with the blocks of the chain that are expected there; a worker may come twice."""
        self._expire(now_ns)
        if chain:
            for expected in self._by_first.get(chain[0], ()):
                yield expected.worker, common_blocks(expected.chain, chain)

    def forget_worker(self, worker: str) -> None:
        self._in_order = deque(e for e in self._in_order if e.worker != worker)
        self._by_first = {}
        for expected in self._in_order:
            self._by_first.setdefault(expected.chain[0], deque()).append(expected)

    def _expire(self, now_ns: int) -> None:
        while self._in_order and self._in_order[0].expiry_ns <= now_ns:
            first = self._in_order.popleft().chain[0]
            # All live equally long, so the oldest of all is the oldest of its group.
            group = self._by_first[first]
            group.popleft()
            if not group:
                del self._by_first[first]
