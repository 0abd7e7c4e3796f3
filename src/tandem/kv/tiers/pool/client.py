"""The client of the shared pool, as a block store: writes to and reads from the processes that hold
it.

A chain lies on the process that its first block names; what is not there may lie on the next. A
process that cannot be reached, or is slow, costs a bounded time once and is then left alone for a
while.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from tandem.facts.backoff import longest, spread
from tandem.facts.kv import BlockFormat, BlockName, placement
from tandem.kernels.transfer import Transfer
from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.connectors.tcp.connector import address_problem
from tandem.kv.connectors.tcp.protocol import Credentials
from tandem.kv.connectors.tcp.stream import PeerAddress, TcpLimits
from tandem.kv.threads import NS_PER_S
from tandem.kv.tiers.block_records import BlockTags
from tandem.kv.tiers.contract import Found, Kept, Row
from tandem.kv.tiers.pool import protocol as frames
from tandem.kv.tiers.pool.link import PoolLink

logger = logging.getLogger(__name__)

CLIENT_LIMITS: Final = TcpLimits(connect_s=1.0, silence_s=2.0)


@dataclass(frozen=True, slots=True)
class PoolClientTerms:
    """`secret` is the cluster's, for connections; `block_secret` is for what they carry, which may
    be older than the cluster. `entropy(n)` gives n bytes that nobody can guess. A process that
    failed is left alone for `retry_s`, spread by `chance` (`facts.backoff`); so is one that took
    longer than `call_s` for one call.
    `tagged`: rows hold the tags of their blocks behind them, as a process of the pool stores them
    (`BlockTags.stored`)."""

    format: BlockFormat
    secret: bytes = field(repr=False)
    block_secret: bytes = field(repr=False)
    transfer: Transfer
    entropy: Callable[[int], bytes]
    now_ns: Callable[[], int]
    limits: TcpLimits = CLIENT_LIMITS
    retry_s: float = 5.0
    call_s: float = 10.0
    tagged: bool = False
    chance: Callable[[], float] = longest


@dataclass(slots=True)
class _Node:
    """One start of a pool process. Reads do not wait behind writes."""

    name: str
    incarnation: str
    reading: PoolLink
    writing: PoolLink
    left_alone_until_ns: int = 0


@dataclass(slots=True)
class _Reading:
    """How far a read has come."""

    names: Sequence[BlockName]
    rows: Sequence[Row]
    blocks: int = 0
    corrupt: tuple[bytes, ...] = ()
    problems: dict[str, None] = field(default_factory=dict)


class PoolClient:
    """A `BlockStore`. `connect_pool_node` and `disconnect_pool_node` may be called from any thread,
    and one thread may write while another reads."""

    def __init__(self, terms: PoolClientTerms) -> None:
        self._terms = terms
        self._tags = BlockTags(terms.block_secret, terms.format, terms.transfer)
        self._lock = threading.Lock()
        self._nodes: dict[str, _Node] = {}

    def connect_pool_node(self, node: str, incarnation: str, address: str) -> None:
        """A process of the pool listens at `address` (host:port, the host in numbers). An older
        start of it is forgotten."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        has_port = port.isdecimal() and len(port) <= 5
        problem = address_problem(host) or ("" if has_port else "it has no port")
        if problem:
            logger.warning("%s of the shared pool is said to be at %s: %s", node, address, problem)
            return
        terms = self._terms
        peer = PeerAddress(
            node,
            (host, int(port)),
            Credentials(terms.secret, frames.incarnation_proof(incarnation)),
            terms.entropy,
            terms.limits,
        )
        reading, writing = (
            PoolLink(
                peer,
                self._tags,
                tagged=terms.tagged,
                now_ns=terms.now_ns,
                call_s=terms.call_s,
            )
            for _ in range(2)
        )
        with self._lock:
            older = self._nodes.get(node)
            self._nodes[node] = _Node(node, incarnation, reading, writing)
        _end(older, "it began anew")

    def disconnect_pool_node(self, node: str, incarnation: str) -> None:
        """That start of the process is gone: what is under way with it ends soon."""
        with self._lock:
            known = self._nodes.get(node)
            if known is None or known.incarnation != incarnation:
                return
            del self._nodes[node]
        _end(known, "it is gone")

    def put_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Kept:
        """Blocks that a process already has are not sent again, and count as kept."""
        kept: list[bytes] = []
        problems: dict[str, None] = {}
        by_node: dict[str, list[int]] = {}
        first_of: dict[bytes, str] = {}
        for index, name in enumerate(names):
            if name.first not in first_of:
                first_of[name.first] = next((n.name for n in self._reachable(name)), "")
            node_name = first_of[name.first] if frames.nameable(name) else ""
            by_node.setdefault(node_name, []).append(index)
        if by_node.pop("", None):
            problems["no process of the shared pool is to be reached"] = None
        for node_name, indices in by_node.items():
            node = self._node(node_name)
            if node is None:
                continue
            chosen = [names[index] for index in indices], [rows[index] for index in indices]
            try:
                kept += node.writing.send_blocks(*chosen)
            except ConnectorError as error:
                problems[self._failed(node, error)] = None
        return Kept(tuple(kept), "; ".join(problems))

    def get_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Found:
        reading = _Reading(names, rows)
        for _, run in groupby(range(len(names)), key=lambda index: names[index].first):
            end = [*run][-1] + 1
            self._read_chain(reading, end)
            if reading.blocks < end:
                break
        failed = () if reading.blocks == len(names) else (names[reading.blocks].digest,)
        corrupt = tuple(digest for digest in failed if digest in reading.corrupt)
        missing = () if corrupt else failed
        return Found(reading.blocks, corrupt, missing, "; ".join(reading.problems))

    def forget_blocks(self, digests: Sequence[bytes]) -> None:
        """What lies in the pool is everybody's: only its own processes forget."""

    def stored_blocks(self) -> tuple[BlockName, ...]:
        """Its processes report by themselves what they hold."""
        return ()

    def put_blocks_to(
        self, node_name: str, names: Sequence[BlockName], rows: Sequence[Row]
    ) -> Kept:
        """As `put_blocks`, to this process whatever the names are."""
        node = self._node(node_name)
        if node is None:
            return Kept((), f"{node_name} is not connected")
        try:
            return Kept(tuple(node.writing.send_blocks(names, rows)))
        except ConnectorError as error:
            return Kept((), self._failed(node, error))

    def close_store(self) -> None:
        with self._lock:
            nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            _end(node, "the client was closed")
            node.reading.close_connection()
            node.writing.close_connection()

    def _read_chain(self, reading: _Reading, end: int) -> None:
        """Blocks of one chain up to `end`, from whoever has them."""
        for node in self._reachable(reading.names[reading.blocks]):
            at = reading.blocks
            try:
                came = node.reading.fetch_blocks(reading.names[at:end], reading.rows[at:end])
            except ConnectorError as error:
                # What came before the failure is written over: it is asked for again.
                reading.problems[self._failed(node, error)] = None
                continue
            reading.blocks += came.blocks
            reading.corrupt += came.corrupt
            if reading.blocks == end:
                return

    def _reachable(self, name: BlockName) -> Iterator[_Node]:
        """Who may hold the chain of a block, and is not left alone for now."""
        with self._lock:
            nodes = dict(self._nodes)
        now_ns = self._terms.now_ns()
        for node_name in placement(name.first, nodes):
            if nodes[node_name].left_alone_until_ns <= now_ns:
                yield nodes[node_name]

    def _node(self, name: str) -> _Node | None:
        with self._lock:
            return self._nodes.get(name)

    def _failed(self, node: _Node, error: ConnectorError) -> str:
        wait_s = spread(self._terms.retry_s, self._terms.chance())
        node.left_alone_until_ns = self._terms.now_ns() + round(wait_s * NS_PER_S)
        logger.warning("the shared pool: %s", error)
        return str(error)


def _end(node: _Node | None, why: str) -> None:
    if node is not None:
        node.reading.stop_link(why)
        node.writing.stop_link(why)
