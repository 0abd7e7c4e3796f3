"""One connection to a process of the shared pool: made when it is needed, and again when it
broke."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tandem.facts.kv import BlockName
from tandem.kv.connectors.tcp.protocol import BadFrame
from tandem.kv.connectors.tcp.stream import PeerAddress, PeerConnection, Stream, pipelined
from tandem.kv.threads import NS_PER_S
from tandem.kv.tiers.block_records import TAG_BYTES, BlockTags
from tandem.kv.tiers.contract import Row
from tandem.kv.tiers.pool import protocol as frames
from tandem.kv.tiers.pool.protocol import Verb, Verdict


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """Blocks of one frame."""

    names: Sequence[BlockName]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Came:
    """The first `blocks` of what was asked for came whole; the next one `corrupt`, or not at
    all."""

    blocks: int
    corrupt: tuple[bytes, ...] = ()


class PoolLink:
    """Used from one thread, but `stop_link`. `send_blocks` and `fetch_blocks` raise
    `ConnectorError` when the process cannot be reached, does not keep to the protocol, is silent
    for too long, or takes longer than `call_s` for all. Blocks are tagged here and looked at here,
    but where rows are `tagged` they hold their tags already."""

    def __init__(
        self,
        address: PeerAddress,
        tags: BlockTags,
        *,
        tagged: bool,
        now_ns: Callable[[], int],
        call_s: float,
    ) -> None:
        self._address = address
        self._now_ns = now_ns
        self._call_ns = round(call_s * NS_PER_S)
        self._deadline_ns = 0
        self._tags = tags
        self._tagged = tagged
        self._format = tags.stored
        self._stopped = ""
        self._connection = PeerConnection(address, self._stop)

    def stop_link(self, why: str) -> None:
        """From any thread: what is under way ends soon, and nothing more is begun."""
        self._stopped = why

    def close_connection(self) -> None:
        """What is asked for next is asked over a new connection."""
        self._connection.drop_stream()

    def send_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> list[bytes]:
        """Offer these and send what is wanted. Gives the digests of those that it holds then."""
        held: list[bytes] = []
        with self._talking() as stream:
            for start in range(0, len(names), frames.OFFER_NAMES):
                end = start + frames.OFFER_NAMES
                held += self._offer(stream, BlockBatch(names[start:end], rows[start:end]))
        return held

    def fetch_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Came:
        """Fill the rows with the leading blocks that it has; those after them may be written to."""
        blocks, whole = 0, True
        corrupt: tuple[bytes, ...] = ()

        def wanted() -> Iterator[BlockBatch]:
            # Nothing is asked for behind a gap, but what was is taken.
            for frame in self._frames(BlockBatch(names, rows)):
                if not whole:
                    return
                yield frame

        def send(frame: BlockBatch) -> None:
            self._send(stream, frames.request(Verb.GET, self._format, frame.names))

        def receive(frame: BlockBatch) -> None:
            nonlocal blocks, whole, corrupt
            came = self._receive(stream, frame)
            if whole:
                blocks, corrupt = blocks + came.blocks, came.corrupt
                whole = came.blocks == len(frame.names)

        with self._talking() as stream:
            pipelined(wanted(), send, receive)
        return Came(blocks, corrupt)

    @property
    def _batch(self) -> int:
        return frames.batch_blocks(self._format.block_bytes)

    def _frames(self, batch: BlockBatch) -> Iterator[BlockBatch]:
        for start in range(0, len(batch.names), self._batch):
            end = start + self._batch
            yield BlockBatch(batch.names[start:end], batch.rows[start:end])

    def _offer(self, stream: Stream, batch: BlockBatch) -> list[bytes]:
        self._send(stream, frames.request(Verb.OFFER, self._format, batch.names))
        verdicts = self._verdicts(stream, len(batch.names))
        held = []
        names, rows = [], []
        for name, row, verdict in zip(batch.names, batch.rows, verdicts, strict=True):
            if verdict is Verdict.HELD:
                held.append(name.digest)
            elif verdict is Verdict.WANTED:
                names.append(name)
                rows.append(row)

        def send(frame: BlockBatch) -> None:
            head = frames.data_frame(self._format, len(frame.names))
            self._send(stream, head, *_pieces(frame, self._tags, tagged=self._tagged))

        def receive(frame: BlockBatch) -> None:
            pairs = zip(frame.names, self._verdicts(stream, len(frame.names)), strict=True)
            held.extend(name.digest for name, verdict in pairs if verdict is Verdict.HELD)

        pipelined(self._frames(BlockBatch(names, rows)), send, receive)
        return held

    def _receive(self, stream: Stream, frame: BlockBatch) -> Came:
        """The answer to one GET, checked."""
        count = self._reply(stream, len(frame.names))
        names, rows = frame.names[:count], frame.rows[:count]
        tags = [memoryview(bytearray(0 if self._tagged else TAG_BYTES)) for _ in rows]
        pairs = zip(rows, tags, strict=True)
        pieces = [piece for row, tag in pairs for piece in (row.data, tag)]
        stream.receive_bytes(pieces, self._address.limits.silence_s)
        if self._tagged:
            bad = self._tags.stored_misfits(names, rows)
        else:
            bad = self._tags.misfits(names, rows, tags)
        if bad:
            return Came(bad[0], (names[bad[0]].digest,))
        return Came(count)

    def _verdicts(self, stream: Stream, count: int) -> tuple[Verdict, ...]:
        if self._reply(stream, count) != count:
            raise BadFrame("an answer to another question")
        data = stream.receive_message(count, self._address.limits.silence_s)
        return frames.parse_verdicts(data)

    def _reply(self, stream: Stream, most: int) -> int:
        data = stream.receive_message(frames.REPLY_BYTES, self._address.limits.silence_s)
        return frames.parse_reply(data, most)

    def _send(self, stream: Stream, *pieces: bytes | memoryview) -> None:
        stream.send_bytes([memoryview(piece) for piece in pieces], self._address.limits.silence_s)

    def _stop(self) -> str:
        """Why to end what is under way, if so."""
        # A few bytes now and then are no silence.
        late = self._now_ns() > self._deadline_ns
        return self._stopped or ("it took too long" if late else "")

    def _talking(self) -> AbstractContextManager[Stream]:
        """The connection, for one call."""
        self._deadline_ns = self._now_ns() + self._call_ns
        return self._connection.talking()


def _pieces(frame: BlockBatch, tags: BlockTags, *, tagged: bool) -> list[bytes | memoryview]:
    """The blocks of a frame, each with its tag behind it."""
    if tagged:
        return [row.data for row in frame.rows]
    pairs = zip(frame.rows, tags.of(frame.names, frame.rows), strict=True)
    return [piece for row, tag in pairs for piece in (row.data, tag)]
