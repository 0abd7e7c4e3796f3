"""Reads shards of KV through one connector: transfers take turns chunk by chunk, so that none waits
behind a long one, and every chunk of scratch memory has one user.

Single-threaded. Knows no orders and no exports: only shards, each with its ranges to read.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tandem.kv.connectors.contract import Connector, ConnectorError, InPlace, Spans
from tandem.kv.threads import NS_PER_S
from tandem.kv.transfer.chunk import Chunk, ChunkBuffers, ChunkStage
from tandem.kv.transfer.config import TransferConfig
from tandem.kv.transfer.read_plan import ChunkRange, ReadPlan

# One is checked while the next is read.
CHUNKS_PER_SHARD = 2


@dataclass(slots=True, eq=False)
class ShardRead:
    """What one transfer reads from one rank, which is `peer` for connectors: `chunk_ranges`, of
    `read_plan` or of encoded copies, and at last the versions of all blocks again (`confirming`).
    `handles` are the connector's, of its chunks under way.

    `problem` is empty as long as all came; `unreachable`: nothing was read, and another connector
    may find the way; `suspects_peer`: the connection failed it, not what came through."""

    move_id: int
    peer: str
    read_plan: ReadPlan
    chunk_ranges: deque[tuple[ReadPlan, ChunkRange]]
    deadline_ns: int
    problem: str = ""
    unreachable: bool = False
    suspects_peer: bool = False
    moved_bytes: int = 0
    spans: int = 0
    confirming: bool = False
    handles: set[int] = field(default_factory=set)
    cut_off_ns: int = 0

    @property
    def over(self) -> bool:
        return not self.handles and (self.confirming or bool(self.problem))

    @property
    def may_go_on(self) -> bool:
        """Whether another chunk may begin now."""
        if self.problem or self.confirming:
            return False
        return len(self.handles) < CHUNKS_PER_SHARD if self.chunk_ranges else not self.handles

    def next_chunk(self, at: int) -> Chunk:
        if not self.chunk_ranges:
            self.confirming = True
            return Chunk(self.read_plan, None, at)
        read_plan, chunk_range = self.chunk_ranges.popleft()
        return Chunk(read_plan, chunk_range, at)

    def count(self, spans: Spans) -> None:
        self.moved_bytes += spans.bytes
        self.spans += len(spans.lengths)


class PeerConnections:
    """The peers of one connector, connected when first needed. One that could not be reached is not
    tried again for a while: trying may take long."""

    def __init__(self, connector: Connector, retry_ns: int) -> None:
        self._connector = connector
        self._retry_ns = retry_ns
        self._reached: set[str] = set()
        self._refused: dict[str, tuple[int, str]] = {}

    def connect_once(self, peer: str, description: bytes, now_ns: int) -> str:
        """Why it cannot be reached; empty when it is connected."""
        if peer in self._reached:
            return ""
        until_ns, problem = self._refused.get(peer, (0, ""))
        if problem and now_ns < until_ns:
            return problem
        try:
            self._connector.connect_peer(peer, description)
        except ConnectorError as error:
            self._refused[peer] = (now_ns + self._retry_ns, str(error))
            return str(error)
        self._refused.pop(peer, None)
        self._reached.add(peer)
        return ""

    def disconnect_peer(self, peer: str) -> None:
        """Its open handles end with a problem; the next read connects anew."""
        self._refused.pop(peer, None)
        if peer in self._reached:
            self._reached.remove(peer)
            self._connector.disconnect_peer(peer)


class ShardReader:
    """All reads through one connector. `read_ended` gets every read that was begun, once, when
    nobody writes on its behalf any more."""

    def __init__(
        self,
        connector: Connector,
        buffers: ChunkBuffers,
        config: TransferConfig,
        read_ended: Callable[[ShardRead], None],
    ) -> None:
        self._connector = connector
        self._buffers = buffers
        self._config = config
        self._read_ended = read_ended
        self._own = connector.register_region(buffers.own, exported=True)
        self._scratch = connector.register_region(buffers.scratch_region, exported=False)
        self._free = [index * config.chunk_bytes for index in range(config.chunks_in_flight)]
        self._reads: deque[ShardRead] = deque()
        self._chunks: dict[int, tuple[ShardRead, Chunk]] = {}
        self._peers = PeerConnections(connector, round(config.retry_s * NS_PER_S))

    @property
    def busy(self) -> bool:
        return bool(self._reads)

    def begin_shard(self, read: ShardRead, description: bytes, now_ns: int) -> None:
        """Read it from now on, turn by turn; `description` is how its peer is reached."""
        if problem := self._peers.connect_once(read.peer, description, now_ns):
            read.problem, read.unreachable = problem, True
        self._reads.append(read)

    def stop_reads(self, move_id: int | None, problem: str, now_ns: int) -> None:
        """End the reads of a transfer soon, or all reads."""
        for read in self._reads:
            if move_id is None or read.move_id == move_id:
                self._give_up(read, problem, now_ns)

    def forget_peer(self, peer: str, problem: str, now_ns: int) -> None:
        """End the reads from it soon, and its connection."""
        for read in self._reads:
            if read.peer == peer:
                self._give_up(read, problem, now_ns)
        self._peers.disconnect_peer(peer)

    def turn(self, now_ns: int) -> None:
        """Begin what can begin, wait a little for what was begun, and end what is over."""
        self._begin_chunks(now_ns)
        if self._chunks:
            for completion in self._connector.poll_completions(self._config.poll_s):
                self._chunk_arrived(completion.handle, completion.problem, now_ns)
        for read in list(self._reads):
            if not read.problem and now_ns >= read.deadline_ns:
                read.suspects_peer = True
                self._give_up(read, f"not done after {self._config.timeout_s:g} s", now_ns)
            elif read.problem and read.handles and now_ns >= read.cut_off_ns:
                self._peers.disconnect_peer(read.peer)
                read.cut_off_ns = now_ns + round(self._config.cancel_s * NS_PER_S)
            if read.over:
                self._end_read(read)

    def _begin_chunks(self, now_ns: int) -> None:
        for _ in range(self._config.chunks_in_flight):
            read = self._next_read() if self._free else None
            if read is None:
                return
            chunk = read.next_chunk(self._free.pop())
            if isinstance(self._connector, InPlace):
                self._copy_chunk(read, chunk, self._connector, now_ns)
            else:
                self._request_chunk(read, chunk, now_ns)

    def _next_read(self) -> ShardRead | None:
        """Reads go in turn."""
        for _ in range(len(self._reads)):
            read = self._reads[0]
            self._reads.rotate(-1)
            if read.may_go_on:
                return read
        return None

    def _copy_chunk(self, read: ShardRead, chunk: Chunk, connector: InPlace, now_ns: int) -> None:
        """All of the chunk at once: nobody need be waited for."""
        try:
            memory = connector.memory_of(read.peer)
        except ConnectorError as error:
            read.suspects_peer = True
            self._give_up(read, str(error), now_ns)
        while chunk.stage is not ChunkStage.DONE and not read.problem:
            read.count(chunk.to_read())
            problem = self._excused(read, chunk, self._buffers.copy_chunk(chunk, memory))
            self._give_up(read, problem, now_ns)
        self._free.append(chunk.at)

    def _request_chunk(self, read: ShardRead, chunk: Chunk, now_ns: int) -> None:
        spans = chunk.to_read()
        try:
            region = self._own if chunk.goes_straight else self._scratch
            handle = self._connector.begin_read(read.peer, spans, region)
        except ConnectorError as error:
            self._free.append(chunk.at)
            read.suspects_peer = True
            self._give_up(read, str(error), now_ns)
            return
        read.handles.add(handle)
        read.count(spans)
        self._chunks[handle] = (read, chunk)

    def _chunk_arrived(self, handle: int, problem: str, now_ns: int) -> None:
        read, chunk = self._chunks.pop(handle)
        read.handles.remove(handle)
        if problem:
            read.suspects_peer = read.suspects_peer or not read.problem
        elif not read.problem:
            problem = self._excused(read, chunk, self._buffers.take_chunk(chunk))
        self._give_up(read, problem, now_ns)
        if read.problem or chunk.stage is ChunkStage.DONE:
            self._free.append(chunk.at)
        else:
            self._request_chunk(read, chunk, now_ns)

    def _excused(self, read: ShardRead, chunk: Chunk, problem: str) -> str:
        """What is wrong with copies is no problem: the blocks themselves are read instead."""
        if not problem or chunk.plan is read.read_plan:
            return problem
        read.chunk_ranges.extend(chunk.instead(read.read_plan, self._config.chunk_bytes))
        chunk.stage = ChunkStage.DONE
        return ""

    def _give_up(self, read: ShardRead, problem: str, now_ns: int) -> None:
        """Its first problem is the one that is reported; none is none."""
        if read.problem or not problem:
            return
        read.problem = problem
        read.cut_off_ns = now_ns + round(self._config.cancel_s * NS_PER_S)
        for handle in read.handles:
            self._connector.cancel_handle(handle)

    def _end_read(self, read: ShardRead) -> None:
        self._reads.remove(read)
        shared = any(other.peer == read.peer and other.handles for other in self._reads)
        if read.suspects_peer and not shared:
            # The next transfer finds a fresh connection.
            self._peers.disconnect_peer(read.peer)
        self._read_ended(read)
