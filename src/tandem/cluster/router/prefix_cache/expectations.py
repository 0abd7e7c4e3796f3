"""Expected prefixes: blocks that a worker will hold soon because a request with them was just sent
there.

Blocks are reported when they are full, which is too late for a burst of requests with one prompt:
the second would be routed before the first has left a trace.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tandem.cluster.router.prefix_cache.runs import common_blocks


class _Expectation(NamedTuple):
    expiry_ns: int
    worker: str
    chain: tuple[bytes, ...]


class _Node:
    """Blocks that follow each other in every chain that reaches them. `until_ns` is until when all
    of them are expected, by worker; who is expected `behind` it is also expected here."""

    __slots__ = ("behind", "digests", "until_ns")

    def __init__(self, digests: tuple[bytes, ...], until_ns: dict[str, int]) -> None:
        self.digests = digests
        self.until_ns = until_ns
        self.behind: dict[bytes, _Node] = {}

    def split(self, blocks: int) -> None:
        """Keep the first blocks; the others come behind."""
        rest = _Node(self.digests[blocks:], dict(self.until_ns))
        rest.behind = self.behind
        self.digests, self.behind = self.digests[:blocks], {rest.digests[0]: rest}


class Expectations:
    """Chains with a time to live, in a radix tree. An equal hash means an equal prefix before it,
    so a node is compared by bisection: adding and looking up take a step for each fork of the chain
    whatever its length, and however many requests with one system prompt are expected."""

    def __init__(self, lifetime_ns: int) -> None:
        self._lifetime_ns = lifetime_ns
        self._in_order: deque[_Expectation] = deque()
        self._root = _Node((), {})

    def add(self, worker: str, chain: Sequence[bytes], now_ns: int) -> None:
        """`now_ns` never goes back."""
        self._expire(now_ns)
        if not chain:
            return
        expected = _Expectation(now_ns + self._lifetime_ns, worker, self._kept(chain))
        self._in_order.append(expected)
        last, end = self._root, 0
        for node, blocks, reached in self._walk(chain):
            if blocks < len(node.digests):
                node.split(blocks)
            node.until_ns[worker] = expected.expiry_ns
            last, end = node, reached
        if end < len(chain):
            last.behind[chain[end]] = _Node(expected.chain[end:], {worker: expected.expiry_ns})

    def match(self, chain: Sequence[bytes], now_ns: int) -> dict[str, int]:
        """How many blocks of the chain are expected, by worker."""
        self._expire(now_ns)
        found: dict[str, int] = {}
        for node, _, end in self._walk(chain):
            found.update(dict.fromkeys(node.until_ns, end))
        return found

    def forget_worker(self, worker: str) -> None:
        kept: deque[_Expectation] = deque()
        for expected in self._in_order:
            if expected.worker == worker:
                self._withdraw(expected)
            else:
                kept.append(expected)
        self._in_order = kept

    def _kept(self, chain: Sequence[bytes]) -> tuple[bytes, ...]:
        """The chain as it is remembered; choices of one call share it."""
        newest = self._in_order[-1].chain if self._in_order else ()
        same = len(newest) == len(chain) and newest[-1] == chain[-1]
        return newest if same else tuple(chain)

    def _walk(self, chain: Sequence[bytes]) -> Iterator[tuple[_Node, int, int]]:
        """The nodes along the chain: how many of their blocks it shares, and where those end."""
        node: _Node | None = self._root
        end = 0
        while node is not None and end < len(chain):
            node = node.behind.get(chain[end])
            if node is not None:
                blocks = common_blocks(node.digests, chain, end)
                end += blocks
                yield node, blocks, end
                if blocks < len(node.digests):
                    return

    def _expire(self, now_ns: int) -> None:
        while self._in_order and self._in_order[0].expiry_ns <= now_ns:
            self._withdraw(self._in_order.popleft())

    def _withdraw(self, expected: _Expectation) -> None:
        """Nothing is left of it where no later one needs the same."""
        before = self._root
        for node, _, _ in self._walk(expected.chain):
            if node.until_ns.get(expected.worker, expected.expiry_ns + 1) <= expected.expiry_ns:
                del node.until_ns[expected.worker]
            if not node.until_ns:
                del before.behind[node.digests[0]]
                return
            before = node
