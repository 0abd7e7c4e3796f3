"""One thread's worth of read_plan, turn by turn: who goes when, and when a read is over."""

from collections import deque
from dataclasses import replace

import pytest

from tandem.kv.transfer.chunk import ChunkBuffers
from tandem.kv.transfer.config import TransferConfig
from tandem.kv.transfer.read_plan import ReadPlan
from tandem.kv.transfer.reader import NS_PER_S, ShardRead, ShardReader
from tandem.kv.transfer.sources import shared_runs
from tests.kv.split_workers import Split, SplitWorker, order_for
from tests.kv.transfer_ranks import TRANSFER, LoopConnector, LoopNet, Source

BLOCK_BYTES = 4 * 2 * 4 * 4 * 3 * 4
# One block a chunk, and little patience with connectors.
CONFIG = TransferConfig(chunk_bytes=BLOCK_BYTES + 400, poll_s=0, chunks_in_flight=4, cancel_s=2)


class Bench:
    """A reader whose turns the test takes, and reads for it to read."""

    def __init__(self, config: TransferConfig = CONFIG) -> None:
        self.net = LoopNet()
        self.source = Source(Split(), self.net)
        self.target = SplitWorker(Split(), 2)
        self.connector = LoopConnector(self.net)
        self.config = config
        self.ended: list[ShardRead] = []
        buffers = ChunkBuffers(self.target.regions[0], TRANSFER, config)
        self.reader = ShardReader(self.connector, buffers, config, self.ended.append)

    def add(self, move_id: int, blocks: int, peer: str = "peer") -> ShardRead:
        order = order_for(Split(), Split(), 0, 4 * blocks)
        self.source.announce(order)
        mine, theirs = self.target.export.shards[0], self.source.worker.export.shards
        layouts = self.source.worker.layouts[0], self.target.layouts[0]
        read_plan = ReadPlan.of_blocks(order, *layouts, shared_runs(mine, theirs)[0])
        chunk_ranges = deque(
            (read_plan, each) for each in read_plan.chunk_ranges(self.config.chunk_bytes)
        )
        read = ShardRead(move_id, peer, read_plan, chunk_ranges, deadline_ns=60 * NS_PER_S)
        self.reader.begin_shard(read, self.source.descriptions[0], now_ns=0)
        return read

    def turns(self, now_ns: int = 0) -> None:
        for _ in range(1000):
            if not self.reader.busy:
                return
            self.reader.turn(now_ns)
        pytest.fail("it never ends")


def test_a_short_move_does_not_wait_for_a_long_one():
    bench = Bench()
    bench.add(1, blocks=6)
    bench.reader.turn(0)
    bench.add(2, blocks=1)
    bench.turns()
    assert [read.move_id for read in bench.ended] == [2, 1]
    assert sum(read.moved_bytes for read in bench.ended) > 7 * BLOCK_BYTES


def test_a_read_is_over_only_when_nobody_can_write_for_it():
    """The connector is slow to cancel: the blocks are not given back before it has done so."""
    bench = Bench()
    bench.connector.ends_cancelled = False
    bench.connector.released.clear()
    bench.add(1, blocks=3)
    bench.reader.turn(0)
    bench.reader.stop_reads(1, "stopped", now_ns=0)
    bench.reader.turn(NS_PER_S)
    assert not bench.ended
    bench.connector.released.set()
    bench.turns()
    assert [read.problem for read in bench.ended] == ["stopped"]


def test_reads_that_do_not_end_are_cut_off_with_their_peer():
    bench = Bench()
    bench.connector.ends_cancelled = False
    bench.connector.released.clear()
    bench.add(1, blocks=3)
    bench.reader.turn(59 * NS_PER_S)
    bench.reader.turn(60 * NS_PER_S)
    assert not bench.ended and bench.connector.peers
    bench.reader.turn(62 * NS_PER_S)
    assert not bench.connector.peers
    bench.turns(62 * NS_PER_S)
    assert [read.problem for read in bench.ended] == ["not done after 60 s"]


def test_moves_from_other_peers_go_on():
    bench = Bench()
    bench.add(1, blocks=3, peer="gone")
    bench.add(2, blocks=3, peer="alive")
    bench.reader.turn(0)
    bench.reader.forget_peer("gone", "gone is gone", 0)
    bench.turns()
    assert {read.move_id: read.problem for read in bench.ended} == {1: "gone is gone", 2: ""}


def test_scratch_memory_comes_back_whatever_happens():
    """Every way to end leaves all chunks for the next."""
    bench = Bench(replace(CONFIG, chunks_in_flight=2))
    for round_number in range(5):
        bench.connector.problems = {round_number * 10 + step: "lost" for step in range(2)}
        bench.add(round_number, blocks=4)
        bench.reader.turn(0)
        bench.reader.stop_reads(round_number, "stopped", 0)
        bench.turns()
    bench.connector.problems = {}
    last = bench.add(9, blocks=6)
    bench.turns()
    assert (last.problem, last.over) == ("", True)
