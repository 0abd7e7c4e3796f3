"""One window of a move on its way into own memory, checked at every stage.

First come the headers, which must name the generations that were announced; then the runs, whose
checksums must be those of the headers. After all windows, one more piece reads the generations
again: a block that was given to another sequence meanwhile has a new one. Encoded copies are
replaced sooner than blocks: of them, every window is looked at again.
"""

from enum import Enum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tandem.kernels.transfer.contract import Transfer
from tandem.kv.codec import convert
from tandem.kv.connector import Spans
from tandem.kv.headers import NOT_COMPUTED, parse
from tandem.kv.layout import EncodedLayout
from tandem.kv.mover_config import MoverConfig
from tandem.kv.region import Region
from tandem.kv.region_layout import WORD_BYTES
from tandem.kv.runs import Reading, Window
from tandem.kv.spans import problem_of

# float16 to float64.
WIDENING = 4


class Stage(Enum):
    HEADERS = "headers"
    RUNS = "runs"
    GENERATIONS = "generations"
    DONE = "done"


class Piece:
    """Of `window`, or of the generations of all blocks. `at` is where its scratch memory begins."""

    def __init__(self, reading: Reading, window: Window | None, at: int) -> None:
        self.reading = reading
        self.window = window or reading.everything
        self.at = at
        self.stage = Stage.HEADERS if window else Stage.GENERATIONS
        self.checksums: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        # Blocks of the window that are not what they should be, once something is wrong.
        self.lost = np.ones(self.window.shape[0], dtype=bool)

    @property
    def of_copies(self) -> bool:
        return isinstance(self.reading.source.layout, EncodedLayout)

    def instead(self, plain: Reading, piece_bytes: int) -> list[tuple[Reading, Window]]:
        """What to read when encoded copies turned out to be wrong: the blocks that are lost as they
        are stored; the others once more, if only their headers have come."""
        again = self.stage is Stage.RUNS
        edges = [0, *(np.flatnonzero(np.diff(self.lost)) + 1).tolist(), len(self.lost)]
        found: list[tuple[Reading, Window]] = []
        for first, end in pairwise(edges):
            if self.lost[first] or again:
                reading = plain if self.lost[first] else self.reading
                blocks = slice(self.window.first + first, self.window.first + end)
                found += ((reading, window) for window in reading.windows(piece_bytes, blocks))
        return found

    @property
    def goes_straight(self) -> bool:
        """Whether what is read next lands in the own region, not in scratch memory."""
        return self.stage is Stage.RUNS and self.window.straight

    def to_read(self) -> Spans:
        match self.stage:
            case Stage.HEADERS:
                return self.reading.headers(self.window, self.at)
            case Stage.RUNS:
                return self.reading.data(self.window, self.at)
            case _:
                return self.reading.generations(self.window, self.at)


class Workplace:
    """Own region and scratch memory of one thread, and what is done with the bytes that came."""

    def __init__(self, own: Region, transfer: Transfer, config: MoverConfig) -> None:
        self.own = own
        self.transfer = transfer
        self.checksums = config.checksums
        # Memory is taken when it is first used, so that what no move needs costs nothing.
        self.scratch = np.empty(config.scratch_bytes, dtype=np.uint8)
        self.converted = np.empty(config.piece_bytes * WIDENING, dtype=np.uint8)

    @property
    def scratch_region(self) -> Region:
        return Region(self.scratch.ctypes.data, len(self.scratch))

    def take(self, piece: Piece) -> str:
        """What `to_read` named is here: check it, land it, and go on to the next stage. Gives what
        is wrong with it, or nothing."""
        if piece.stage is Stage.HEADERS:
            piece.stage = Stage.RUNS
            return self._headers_problem(piece)
        if piece.stage is Stage.RUNS:
            found = self._checksums(piece) if self.checksums else None
            return self._take_runs(piece, found)
        piece.stage = Stage.DONE
        raw = self.scratch[piece.at : piece.at + piece.window.shape[0] * WORD_BYTES]
        return _generation_problem(piece, np.frombuffer(raw, dtype="<u8"))

    def copy(self, piece: Piece, memory: NDArray[np.uint8]) -> str:
        """As `take`, but first copy what `to_read` names from the memory of a peer, mapped here:
        runs are checked while they are copied."""
        spans, own = piece.to_read(), self.own if piece.goes_straight else self.scratch_region
        if problem := problem_of(spans, len(memory), own.bytes):
            return problem
        if piece.stage is Stage.RUNS and self.checksums:
            found = self.transfer.copy_runs(
                own.address,
                memory.ctypes.data,
                target_offsets=piece.reading.landed_runs(piece.window, piece.at),
                source_offsets=piece.reading.remote_runs(piece.window),
                run_bytes=piece.reading.source.run_bytes,
            )
            return self._take_runs(piece, found)
        self.transfer.copy_spans(
            own.address,
            memory.ctypes.data,
            target_offsets=spans.local,
            source_offsets=spans.remote,
            lengths=spans.lengths,
        )
        return self._take_runs(piece, None) if piece.stage is Stage.RUNS else self.take(piece)

    def _headers_problem(self, piece: Piece) -> str:
        reading, window = piece.reading, piece.window
        raw = self.scratch[piece.at : piece.at + reading.data_at(window)]
        generations, checksums = parse(raw, reading.source)
        piece.checksums = checksums[:, reading.runs.source[window.runs]]
        problem = _generation_problem(piece, generations)
        if not problem and self.checksums and (piece.checksums == NOT_COMPUTED).any():
            problem = f"{reading.order.source} publishes no checksums, and they are wanted here"
        return problem

    def _checksums(self, piece: Piece) -> NDArray[np.uint64]:
        reading, window = piece.reading, piece.window
        memory = self.own if window.straight else self.scratch_region
        return self.transfer.checksum_runs(
            memory.address, reading.landed_runs(window, piece.at), reading.source.run_bytes
        )

    def _take_runs(self, piece: Piece, found: NDArray[np.uint64] | None) -> str:
        """`found` are the checksums of what came, if they are to be compared."""
        piece.stage = Stage.GENERATIONS if piece.of_copies else Stage.DONE
        if found is not None:
            wrong = np.argwhere(found.reshape(piece.window.shape) != piece.checksums)
            if len(wrong):
                order, index = piece.reading.order, piece.window.first + int(wrong[0][0])
                block = order.source_blocks[index]
                return f"{len(wrong)} runs came spoilt, the first in block {block}"
        if not piece.window.straight:
            self._land(piece)
        return ""

    def _land(self, piece: Piece) -> None:
        reading, window = piece.reading, piece.window
        blocks, runs = window.shape
        begin = piece.at + reading.data_at(window)
        raw = self.scratch[begin : begin + blocks * runs * reading.source.run_bytes]
        rows = raw.reshape(-1, reading.source.layout.row_bytes)
        row_bytes = reading.target.layout.row_bytes
        room = self.converted[: len(rows) * row_bytes].reshape(-1, row_bytes)
        mine, theirs = reading.target.layout.dtype, reading.source.layout.dtype
        values = convert(rows, theirs, mine, out=room)
        landing = reading.landing(window)
        self.transfer.copy_spans(
            self.own.address,
            values.ctypes.data,
            target_offsets=landing.local,
            source_offsets=landing.remote,
            lengths=landing.lengths,
        )


def _generation_problem(piece: Piece, found: NDArray[np.uint64]) -> str:
    lost = found != piece.reading.expected[piece.window.blocks]
    wrong = np.flatnonzero(lost)
    if not len(wrong):
        return ""
    piece.lost = lost
    order, index = piece.reading.order, piece.window.first + int(wrong[0])
    return (
        f"block {order.source_blocks[index]} of {order.source} is not what was announced: "
        f"generation {int(found[wrong[0]])}, not {int(piece.reading.expected[index])}"
    )
