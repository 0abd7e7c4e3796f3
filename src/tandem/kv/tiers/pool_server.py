"""A process of the shared pool towards those who write to it and read from it: a thread for each
connection, and a few buffers for the bytes of all.

Which blocks are wanted and where they lie is for the desk to say. Whatever comes over the port, and
whoever goes away in the middle, no block is kept that did not come whole.
"""

import queue
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tandem.facts.kv_tiers import BlockName
from tandem.kv.connectors.tcp_door import TcpDoor, TcpLimits
from tandem.kv.connectors.tcp_frames import BadFrame, Credentials
from tandem.kv.connectors.tcp_stream import Stream, StreamEnded
from tandem.kv.tiers import pool_frames as frames
from tandem.kv.tiers.block_tags import BlockTags
from tandem.kv.tiers.contract import Row
from tandem.kv.tiers.memory import Rows, allocated_rows
from tandem.kv.tiers.pool_frames import Head, Status, Verb, Verdict

# More than there are cores only wait for each other.
BUFFERS: Final = 16
# Far more than the silence between two requests of a worker that has work.
SERVER_LIMITS: Final = TcpLimits(connect_s=2.0, silence_s=5.0, idle_s=600.0)


class PoolDesk(Protocol):
    """Decides, and keeps the bytes: rows are blocks with their tags behind them. Called from many
    threads; calls wait for the bytes. Raises `ConnectorError` when the process ends."""

    def offer(self, names: Sequence[BlockName]) -> Sequence[Verdict]:
        """WANTED ones are on their way from now on: until `keep` or `forgo`."""
        ...

    def keep(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Sequence[Verdict]:
        """These came whole: HELD, or UNWANTED where there was no room. The rows are not touched
        after it returns."""
        ...

    def forgo(self, names: Sequence[BlockName]) -> None:
        """These will not come."""
        ...

    def read(self, names: Sequence[BlockName], rows: Sequence[Row]) -> int:
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
        desk: PoolDesk,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """`failed` is told when nobody can be served any more."""
        self._terms = terms
        self._desk = desk
        self._buffers: queue.LifoQueue[Rows] = queue.LifoQueue()
        self._format = terms.tags.stored
        block_bytes = self._format.block_bytes
        for _ in range(terms.buffers):
            self._buffers.put(allocated_rows(frames.batch_blocks(block_bytes), block_bytes))
        self._door = TcpDoor(
            listening,
            terms.credentials,
            self._serve,
            entropy=terms.entropy,
            limits=terms.limits,
            failed=failed,
        )
        self.port = self._door.port

    def close(self, patience_s: float) -> None:
        """Serve nobody any more."""
        self._door.close(patience_s)

    def _serve(self, stream: Stream) -> None:
        wanted: list[BlockName] = []
        try:
            while True:
                self._answer(stream, wanted)
        finally:
            if wanted:
                self._desk.forgo(wanted)

    def _answer(self, stream: Stream, wanted: list[BlockName]) -> None:
        """One request. `wanted` is what is still to come over this connection."""
        silence_s = self._terms.limits.silence_s
        beginning = bytearray(frames.HEAD_BYTES)
        # Nobody else brings what this client has promised.
        patience_s = silence_s if wanted else self._terms.limits.idle_s
        stream.receive([memoryview(beginning)[:1]], patience_s)
        stream.receive([memoryview(beginning)[1:]], silence_s)
        head = frames.parse_head(bytes(beginning))
        body = bytearray(head.names_bytes)
        stream.receive([memoryview(body)], silence_s)
        names = frames.parse_names(head, bytes(body)) if head.names_bytes else ()
        if head.format != self._format:
            stream.send([memoryview(frames.reply(0, Status.OTHER_FORMAT))], silence_s)
            raise BadFrame("blocks of another format")
        match head.verb:
            case Verb.OFFER:
                self._hear_offer(stream, names, wanted)
            case Verb.DATA:
                self._take(stream, head, wanted)
            case Verb.GET:
                self._give(stream, names)

    def _hear_offer(
        self, stream: Stream, names: Sequence[BlockName], wanted: list[BlockName]
    ) -> None:
        # A client that changes its mind sends nothing of what it offered before.
        if wanted:
            self._desk.forgo(wanted)
            wanted.clear()
        verdicts = self._desk.offer(names)
        pairs = zip(names, verdicts, strict=True)
        wanted += (name for name, verdict in pairs if verdict is Verdict.WANTED)
        self._tell(stream, verdicts)

    def _take(self, stream: Stream, head: Head, wanted: list[BlockName]) -> None:
        if head.count > len(wanted):
            raise BadFrame("blocks that nobody wants")
        silence_s = self._terms.limits.silence_s
        buffer = self._take_buffer()
        try:
            rows = buffer[: head.count]
            stream.receive([row.data for row in rows], silence_s)
            names = wanted[: head.count]
            # From here on they are the desk's.
            del wanted[: head.count]
            verdicts = self._keep(names, list(rows))
        finally:
            self._buffers.put(buffer)
        self._tell(stream, verdicts)

    def _keep(self, names: list[BlockName], rows: list[Row]) -> Sequence[Verdict]:
        spoilt = set(self._terms.tags.stored_misfits(names, rows))
        whole = [index not in spoilt for index in range(len(names))]
        if all(whole):
            return self._desk.keep(names, rows)
        self._desk.forgo([name for name, good in zip(names, whole, strict=True) if not good])
        good_names = [name for name, good in zip(names, whole, strict=True) if good]
        good_rows = [row for row, good in zip(rows, whole, strict=True) if good]
        found = iter(self._desk.keep(good_names, good_rows) if good_names else ())
        return [next(found) if good else Verdict.SPOILT for good in whole]

    def _give(self, stream: Stream, names: Sequence[BlockName]) -> None:
        buffer = self._take_buffer()
        try:
            rows = buffer[: len(names)]
            count = self._desk.read(names, list(rows))
            # Whoever reads them looks at their tags.
            pieces = [memoryview(frames.reply(count)), *(row.data for row in rows[:count])]
            stream.send(pieces, self._terms.limits.silence_s)
        finally:
            self._buffers.put(buffer)

    def _tell(self, stream: Stream, verdicts: Sequence[Verdict]) -> None:
        pieces = [memoryview(frames.reply(len(verdicts))), memoryview(bytes(verdicts))]
        stream.send(pieces, self._terms.limits.silence_s)

    def _take_buffer(self) -> Rows:
        """Whoever takes one gives it back. Raises `StreamEnded` when all are long in use."""
        try:
            return self._buffers.get(timeout=self._terms.limits.silence_s)
        except queue.Empty as error:
            raise StreamEnded("too much is on its way here") from error
