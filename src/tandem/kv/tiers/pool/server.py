"""The server of the shared pool, for those who write to it and read from it: a thread for each
connection, and a few buffers for the bytes of all.

Which blocks are wanted and where they lie the coordinator decides (`PoolCoordinator`).
Whatever comes over the port, and whoever goes away in the middle, no block is kept that did not
come whole.
"""

import queue
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tandem.facts.kv import BlockName
from tandem.kv.connectors.tcp.listener import TcpListener
from tandem.kv.connectors.tcp.protocol import BadFrame, Credentials
from tandem.kv.connectors.tcp.stream import Stream, StreamEnded, TcpLimits
from tandem.kv.tiers.block_records import BlockTags
from tandem.kv.tiers.contract import Row
from tandem.kv.tiers.pool import protocol as frames
from tandem.kv.tiers.pool.protocol import Head, Status, Verb, Verdict
from tandem.kv.tiers.rows import Rows, allocated_rows

# More than there are cores only wait for each other.
BUFFERS: Final = 16
# Far more than the silence between two requests of a worker that has work.
SERVER_LIMITS: Final = TcpLimits(connect_s=2.0, silence_s=5.0, idle_s=600.0)


class PoolCoordinator(Protocol):
    """Decides, and keeps the bytes: rows are blocks with their tags behind them. Called from many
    threads; calls wait for the bytes. Raises `ConnectorError` when the process ends."""

    def offer_blocks(self, names: Sequence[BlockName]) -> Sequence[Verdict]:
        """WANTED ones are on their way from now on: until `keep_blocks` or
        `give_up_blocks`."""
        ...

    def keep_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Sequence[Verdict]:
        """These came whole: HELD, or UNWANTED where there was no room. The rows are not touched
        after it returns."""
        ...

    def give_up_blocks(self, names: Sequence[BlockName]) -> None:
        """These will not come."""
        ...

    def read_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> int:
        """Fill the rows with the leading blocks that are here, whole. Gives how many. The rows are
        not touched after it returns."""
        ...


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """`tags` are those of all blocks here; `entropy(n)` gives n bytes that nobody can guess."""

    tags: BlockTags
    credentials: Credentials
    entropy: Callable[[int], bytes]
    limits: TcpLimits = SERVER_LIMITS
    buffers: int = BUFFERS


class PoolServer:
    """Listens from its making on, at `port`."""

    def __init__(
        self,
        listening: socket.socket,
        terms: PoolTerms,
        coordinator: PoolCoordinator,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`failed` is called when nobody can be served any more."""
        self._terms = terms
        self._coordinator = coordinator
        self._buffers: queue.LifoQueue[Rows] = queue.LifoQueue()
        self._format = terms.tags.stored
        block_bytes = self._format.block_bytes
        for _ in range(terms.buffers):
            self._buffers.put(allocated_rows(frames.batch_blocks(block_bytes), block_bytes))
        self._listener = TcpListener(
            listening,
            terms.credentials,
            self._serve,
            entropy=terms.entropy,
            limits=terms.limits,
            failed=failed,
        )
        self.port = self._listener.port

    def stop_serving(self, patience_s: float) -> None:
        """Serve nobody any more."""
        self._listener.close_listener(patience_s)

    def _serve(self, stream: Stream) -> None:
        wanted: list[BlockName] = []
        try:
            while True:
                self._answer(stream, wanted)
        finally:
            if wanted:
                self._coordinator.give_up_blocks(wanted)

    def _answer(self, stream: Stream, wanted: list[BlockName]) -> None:
        """One request. `wanted` is what is still to come over this connection."""
        silence_s = self._terms.limits.silence_s
        # Nobody else brings what this client has promised.
        patience_s = silence_s if wanted else self._terms.limits.idle_s
        head = frames.parse_head(stream.receive_head(frames.HEAD_BYTES, patience_s, silence_s))
        body = stream.receive_message(head.names_bytes, silence_s)
        names = frames.parse_names(head, body) if head.names_bytes else ()
        if head.format != self._format:
            stream.send_bytes([memoryview(frames.reply(0, Status.OTHER_FORMAT))], silence_s)
            raise BadFrame("blocks of another format")
        match head.verb:
            case Verb.OFFER:
                self._take_offer(stream, names, wanted)
            case Verb.DATA:
                self._take_data(stream, head, wanted)
            case Verb.GET:
                self._send_blocks(stream, names)

    def _take_offer(
        self, stream: Stream, names: Sequence[BlockName], wanted: list[BlockName]
    ) -> None:
        # A client that changes its mind sends nothing of what it offered before.
        if wanted:
            self._coordinator.give_up_blocks(wanted)
            wanted.clear()
        verdicts = self._coordinator.offer_blocks(names)
        pairs = zip(names, verdicts, strict=True)
        wanted += (name for name, verdict in pairs if verdict is Verdict.WANTED)
        self._send_verdicts(stream, verdicts)

    def _take_data(self, stream: Stream, head: Head, wanted: list[BlockName]) -> None:
        if head.count > len(wanted):
            raise BadFrame("blocks that nobody wants")
        silence_s = self._terms.limits.silence_s
        buffer = self._take_buffer()
        try:
            rows = buffer[: head.count]
            stream.receive_bytes([row.data for row in rows], silence_s)
            names = wanted[: head.count]
            # From here on they are the coordinator's.
            del wanted[: head.count]
            verdicts = self._keep(names, list(rows))
        finally:
            self._buffers.put(buffer)
        self._send_verdicts(stream, verdicts)

    def _keep(self, names: list[BlockName], rows: list[Row]) -> Sequence[Verdict]:
        corrupt = set(self._terms.tags.stored_misfits(names, rows))
        whole = [index not in corrupt for index in range(len(names))]
        if all(whole):
            return self._coordinator.keep_blocks(names, rows)
        self._coordinator.give_up_blocks(
            [name for name, good in zip(names, whole, strict=True) if not good]
        )
        good_names = [name for name, good in zip(names, whole, strict=True) if good]
        good_rows = [row for row, good in zip(rows, whole, strict=True) if good]
        found = iter(self._coordinator.keep_blocks(good_names, good_rows) if good_names else ())
        return [next(found) if good else Verdict.CORRUPT for good in whole]

    def _send_blocks(self, stream: Stream, names: Sequence[BlockName]) -> None:
        buffer = self._take_buffer()
        try:
            rows = buffer[: len(names)]
            count = self._coordinator.read_blocks(names, list(rows))
            # Whoever reads them looks at their tags.
            pieces = [memoryview(frames.reply(count)), *(row.data for row in rows[:count])]
            stream.send_bytes(pieces, self._terms.limits.silence_s)
        finally:
            self._buffers.put(buffer)

    def _send_verdicts(self, stream: Stream, verdicts: Sequence[Verdict]) -> None:
        pieces = [memoryview(frames.reply(len(verdicts))), memoryview(bytes(verdicts))]
        stream.send_bytes(pieces, self._terms.limits.silence_s)

    def _take_buffer(self) -> Rows:
        """Whoever takes one gives it back. Raises `StreamEnded` when all are long in use."""
        try:
            return self._buffers.get(timeout=self._terms.limits.silence_s)
        except queue.Empty as error:
            raise StreamEnded("too much is on its way here") from error
