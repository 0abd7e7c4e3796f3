"""All that is being read through one connector: moves take turns piece by piece, so that none waits
behind a long one, and every piece of scratch memory has one user.

Single-threaded. Knows no orders and no exports: only parts, each with its windows.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tandem.kv.connector import Connector, ConnectorError, InPlace, Spans
from tandem.kv.mover_config import MoverConfig
from tandem.kv.mover_peers import Peers
from tandem.kv.mover_piece import Piece, Stage, Workplace
from tandem.kv.runs import Reading, Window

NS_PER_S = 1_000_000_000
# One is checked while the next is read.
PIECES_PER_PART = 2


@dataclass(slots=True, eq=False)
class Part:
    """What one move reads from one rank, which is `peer` for connectors: `windows`, of `reading` or
    of encoded copies, and at last the generations of all blocks again (`confirming`).

    `problem` is empty as long as all came; `unreachable`: nothing was read, and another connector
    may find the way; `suspects_peer`: the connection failed it, not what came through."""

    move_id: int
    peer: str
    reading: Reading
    windows: deque[tuple[Reading, Window]]
    deadline_ns: int
    problem: str = ""
    unreachable: bool = False
    suspects_peer: bool = False
    moved_bytes: int = 0
    spans: int = 0
    confirming: bool = False
    tickets: set[int] = field(default_factory=set)
    cut_off_ns: int = 0

    @property
    def over(self) -> bool:
        return not self.tickets and (self.confirming or bool(self.problem))

    @property
    def may_go_on(self) -> bool:
        """Whether another piece may begin now."""
        if self.problem or self.confirming:
            return False
        return len(self.tickets) < PIECES_PER_PART if self.windows else not self.tickets

    def next_piece(self, at: int) -> Piece:
        if not self.windows:
            self.confirming = True
            return Piece(self.reading, None, at)
        reading, window = self.windows.popleft()
        return Piece(reading, window, at)

    def count(self, spans: Spans) -> None:
        self.moved_bytes += spans.bytes
        self.spans += len(spans.lengths)


@dataclass(slots=True)
class ReadingStatistics:
    """Of one connector since the start; a part is what one move reads from one rank."""

    parts: int = 0
    failed_parts: int = 0
    moved_bytes: int = 0
    spans: int = 0


class Reader:
    """`ended` gets every part that was added, once, when nobody writes on its behalf any more."""

    def __init__(
        self,
        connector: Connector,
        place: Workplace,
        config: MoverConfig,
        ended: Callable[[Part], None],
    ) -> None:
        self.connector = connector
        self.statistics = ReadingStatistics()
        self._place = place
        self._config = config
        self._ended = ended
        self._own = connector.register(place.own, exported=True)
        self._scratch = connector.register(place.scratch_region, exported=False)
        self._free = [index * config.piece_bytes for index in range(config.pieces_in_flight)]
        self._parts: deque[Part] = deque()
        self._pieces: dict[int, tuple[Part, Piece]] = {}
        self._peers = Peers(connector, round(config.retry_s * NS_PER_S))

    @property
    def busy(self) -> bool:
        return bool(self._parts)

    def add(self, part: Part, description: bytes, now_ns: int) -> None:
        if problem := self._peers.reach(part.peer, description, now_ns):
            part.problem, part.unreachable = problem, True
        self._parts.append(part)

    def stop(self, move_id: int | None, problem: str, now_ns: int) -> None:
        """End the parts of a move soon, or all parts."""
        for part in self._parts:
            if move_id is None or part.move_id == move_id:
                self._give_up(part, problem, now_ns)

    def forget(self, peer: str, problem: str, now_ns: int) -> None:
        for part in self._parts:
            if part.peer == peer:
                self._give_up(part, problem, now_ns)
        self._peers.leave(peer)

    def turn(self, now_ns: int) -> None:
        """Begin what can begin, wait a little for what was begun, and end what is over."""
        self._begin(now_ns)
        if self._pieces:
            for completion in self.connector.poll(self._config.poll_s):
                self._take(completion.ticket, completion.problem, now_ns)
        for part in list(self._parts):
            if not part.problem and now_ns >= part.deadline_ns:
                part.suspects_peer = True
                self._give_up(part, f"not done after {self._config.timeout_s:g} s", now_ns)
            elif part.problem and part.tickets and now_ns >= part.cut_off_ns:
                self._peers.leave(part.peer)
                part.cut_off_ns = now_ns + round(self._config.cancel_s * NS_PER_S)
            if part.over:
                self._end(part)

    def _begin(self, now_ns: int) -> None:
        for _ in range(self._config.pieces_in_flight):
            part = self._next_part() if self._free else None
            if part is None:
                return
            piece = part.next_piece(self._free.pop())
            if isinstance(self.connector, InPlace):
                self._copy(part, piece, self.connector, now_ns)
            else:
                self._read(part, piece, now_ns)

    def _next_part(self) -> Part | None:
        """Parts go in turn."""
        for _ in range(len(self._parts)):
            part = self._parts[0]
            self._parts.rotate(-1)
            if part.may_go_on:
                return part
        return None

    def _copy(self, part: Part, piece: Piece, connector: InPlace, now_ns: int) -> None:
        """All of the piece at once: nobody need be waited for."""
        try:
            memory = connector.memory_of(part.peer)
        except ConnectorError as error:
            part.suspects_peer = True
            self._give_up(part, str(error), now_ns)
        while piece.stage is not Stage.DONE and not part.problem:
            part.count(piece.to_read())
            problem = self._excuse(part, piece, self._place.copy(piece, memory))
            self._give_up(part, problem, now_ns)
        self._free.append(piece.at)

    def _read(self, part: Part, piece: Piece, now_ns: int) -> None:
        spans = piece.to_read()
        try:
            handle = self._own if piece.goes_straight else self._scratch
            ticket = self.connector.read(part.peer, spans, handle)
        except ConnectorError as error:
            self._free.append(piece.at)
            part.suspects_peer = True
            self._give_up(part, str(error), now_ns)
            return
        part.tickets.add(ticket)
        part.count(spans)
        self._pieces[ticket] = (part, piece)

    def _take(self, ticket: int, problem: str, now_ns: int) -> None:
        part, piece = self._pieces.pop(ticket)
        part.tickets.remove(ticket)
        if problem:
            part.suspects_peer = part.suspects_peer or not part.problem
        elif not part.problem:
            problem = self._excuse(part, piece, self._place.take(piece))
        self._give_up(part, problem, now_ns)
        if part.problem or piece.stage is Stage.DONE:
            self._free.append(piece.at)
        else:
            self._read(part, piece, now_ns)

    def _excuse(self, part: Part, piece: Piece, problem: str) -> str:
        """What is wrong with copies is no problem: the blocks themselves are read instead."""
        if not problem or piece.reading is part.reading:
            return problem
        part.windows.extend(piece.instead(part.reading, self._config.piece_bytes))
        piece.stage = Stage.DONE
        return ""

    def _give_up(self, part: Part, problem: str, now_ns: int) -> None:
        """Its first problem is the one that is told; none is none."""
        if part.problem or not problem:
            return
        part.problem = problem
        part.cut_off_ns = now_ns + round(self._config.cancel_s * NS_PER_S)
        for ticket in part.tickets:
            self.connector.cancel(ticket)

    def _end(self, part: Part) -> None:
        self._parts.remove(part)
        statistics = self.statistics
        statistics.parts += 1
        statistics.failed_parts += bool(part.problem)
        statistics.moved_bytes += part.moved_bytes
        statistics.spans += part.spans
        shared = any(other.peer == part.peer and other.tickets for other in self._parts)
        if part.suspects_peer and not shared:
            # The next move finds a fresh connection.
            self._peers.leave(part.peer)
        self._ended(part)
