"""One chunk of a KV transfer on its way into own memory, checked at every stage.

First come the metadata of its blocks, which must name the versions that were announced; then the
runs, whose checksums must be those of the metadata. After all ranges, one more chunk reads the
versions again: a block that was given to another sequence meanwhile has a new one. Encoded copies
are replaced sooner than blocks: of them, the versions of every range are looked at again.
"""

from enum import Enum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tandem.kernels.transfer import Transfer
from tandem.kv.codec import convert
from tandem.kv.connectors.contract import Spans, problem_of
from tandem.kv.layout import WORD_BYTES, EncodedLayout
from tandem.kv.region import Region
from tandem.kv.transfer.config import TransferConfig
from tandem.kv.transfer.export import NOT_COMPUTED, parse_metadata
from tandem.kv.transfer.read_plan import ChunkRange, ReadPlan

# float16 to float64.
WIDENING = 4


class ChunkStage(Enum):
    METADATA = "metadata"
    RUNS = "runs"
    VERSIONS = "versions"
    DONE = "done"


class Chunk:
    """What is read at once: the blocks and runs of `wanted`, or, without, the versions of all
    blocks of the plan. `at` is where its scratch memory begins."""

    def __init__(self, plan: ReadPlan, wanted: ChunkRange | None, at: int) -> None:
        self.plan = plan
        self.range = wanted or plan.everything
        self.at = at
        self.stage = ChunkStage.METADATA if wanted else ChunkStage.VERSIONS
        self.checksums: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        # Blocks of the range that are not what they should be, once something is wrong.
        self.lost = np.ones(self.range.shape[0], dtype=bool)

    @property
    def of_copies(self) -> bool:
        return isinstance(self.plan.source.layout, EncodedLayout)

    def instead(self, plain: ReadPlan, chunk_bytes: int) -> list[tuple[ReadPlan, ChunkRange]]:
        """What to read when encoded copies turned out to be wrong: the blocks that are lost as they
        are stored; the others once more, if only their metadata have come."""
        again = self.stage is ChunkStage.RUNS
        edges = [0, *(np.flatnonzero(np.diff(self.lost)) + 1).tolist(), len(self.lost)]
        found: list[tuple[ReadPlan, ChunkRange]] = []
        for first, end in pairwise(edges):
            if self.lost[first] or again:
                plan = plain if self.lost[first] else self.plan
                blocks = slice(self.range.first + first, self.range.first + end)
                found += ((plan, one) for one in plan.chunk_ranges(chunk_bytes, blocks))
        return found

    @property
    def goes_straight(self) -> bool:
        """Whether what is read next lands in the own region, not in scratch memory."""
        return self.stage is ChunkStage.RUNS and self.range.straight

    def to_read(self) -> Spans:
        """What the next stage needs, and where it comes to lie."""
        match self.stage:
            case ChunkStage.METADATA:
                return self.plan.metadata_spans(self.range, self.at)
            case ChunkStage.RUNS:
                return self.plan.data_spans(self.range, self.at)
            case _:
                return self.plan.version_spans(self.range, self.at)


class ChunkBuffers:
    """Own region and scratch memory of one thread, and what is done with the bytes that came."""

    def __init__(self, own: Region, transfer: Transfer, config: TransferConfig) -> None:
        self.own = own
        self.transfer = transfer
        self.checksums = config.checksums
        # Memory is taken when it is first used, so that what no transfer needs costs nothing.
        self.scratch = np.empty(config.scratch_bytes, dtype=np.uint8)
        self.converted = np.empty(config.chunk_bytes * WIDENING, dtype=np.uint8)

    @property
    def scratch_region(self) -> Region:
        return Region(self.scratch.ctypes.data, len(self.scratch))

    def take_chunk(self, chunk: Chunk) -> str:
        """What `to_read` named is here: check it, land it, and go on to the next stage. Gives what
        is wrong with it, or nothing."""
        if chunk.stage is ChunkStage.METADATA:
            chunk.stage = ChunkStage.RUNS
            return self._metadata_problem(chunk)
        if chunk.stage is ChunkStage.RUNS:
            found = self._checksums(chunk) if self.checksums else None
            return self._take_runs(chunk, found)
        chunk.stage = ChunkStage.DONE
        raw = self.scratch[chunk.at : chunk.at + chunk.range.shape[0] * WORD_BYTES]
        return _version_problem(chunk, np.frombuffer(raw, dtype="<u8"))

    def copy_chunk(self, chunk: Chunk, memory: NDArray[np.uint8]) -> str:
        """As `take_chunk`, but first copy what `to_read` names from the memory of a peer, mapped
        here: runs are checked while they are copied."""
        spans, own = chunk.to_read(), self.own if chunk.goes_straight else self.scratch_region
        if problem := problem_of(spans, len(memory), own.bytes):
            return problem
        if chunk.stage is ChunkStage.RUNS and self.checksums:
            found = self.transfer.copy_runs(
                own.address,
                memory.ctypes.data,
                target_offsets=chunk.plan.landed_runs(chunk.range, chunk.at),
                source_offsets=chunk.plan.remote_runs(chunk.range),
                run_bytes=chunk.plan.source.run_bytes,
            )
            return self._take_runs(chunk, found)
        self.transfer.copy_spans(
            own.address,
            memory.ctypes.data,
            target_offsets=spans.local,
            source_offsets=spans.remote,
            lengths=spans.lengths,
        )
        return (
            self._take_runs(chunk, None)
            if chunk.stage is ChunkStage.RUNS
            else self.take_chunk(chunk)
        )

    def _metadata_problem(self, chunk: Chunk) -> str:
        plan, wanted = chunk.plan, chunk.range
        raw = self.scratch[chunk.at : chunk.at + plan.data_at(wanted)]
        versions, checksums = parse_metadata(raw, plan.source)
        chunk.checksums = checksums[:, plan.runs.source[wanted.runs]]
        problem = _version_problem(chunk, versions)
        if not problem and self.checksums and (chunk.checksums == NOT_COMPUTED).any():
            problem = f"{plan.order.source} exports no checksums, and they are wanted here"
        return problem

    def _checksums(self, chunk: Chunk) -> NDArray[np.uint64]:
        plan, wanted = chunk.plan, chunk.range
        memory = self.own if wanted.straight else self.scratch_region
        return self.transfer.checksum_runs(
            memory.address, plan.landed_runs(wanted, chunk.at), plan.source.run_bytes
        )

    def _take_runs(self, chunk: Chunk, found: NDArray[np.uint64] | None) -> str:
        """`found` are the checksums of what came, if they are to be compared."""
        chunk.stage = ChunkStage.VERSIONS if chunk.of_copies else ChunkStage.DONE
        if found is not None:
            wrong = np.argwhere(found.reshape(chunk.range.shape) != chunk.checksums)
            if len(wrong):
                order, index = chunk.plan.order, chunk.range.first + int(wrong[0][0])
                block = order.source_blocks[index]
                return f"{len(wrong)} runs came corrupt, the first in block {block}"
        if not chunk.range.straight:
            self._land(chunk)
        return ""

    def _land(self, chunk: Chunk) -> None:
        plan, wanted = chunk.plan, chunk.range
        blocks, runs = wanted.shape
        begin = chunk.at + plan.data_at(wanted)
        raw = self.scratch[begin : begin + blocks * runs * plan.source.run_bytes]
        rows = raw.reshape(-1, plan.source.layout.row_bytes)
        row_bytes = plan.target.layout.row_bytes
        room = self.converted[: len(rows) * row_bytes].reshape(-1, row_bytes)
        mine, theirs = plan.target.layout.dtype, plan.source.layout.dtype
        values = convert(rows, theirs, mine, out=room)
        landing = plan.landing_spans(wanted)
        self.transfer.copy_spans(
            self.own.address,
            values.ctypes.data,
            target_offsets=landing.local,
            source_offsets=landing.remote,
            lengths=landing.lengths,
        )


def _version_problem(chunk: Chunk, found: NDArray[np.uint64]) -> str:
    lost = found != chunk.plan.expected[chunk.range.blocks]
    wrong = np.flatnonzero(lost)
    if not len(wrong):
        return ""
    chunk.lost = lost
    order, index = chunk.plan.order, chunk.range.first + int(wrong[0])
    return (
        f"block {order.source_blocks[index]} of {order.source} is not what was announced: "
        f"version {int(found[wrong[0]])}, not {int(chunk.plan.expected[index])}"
    )
