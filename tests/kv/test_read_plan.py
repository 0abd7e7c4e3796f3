"""A move lands every value where it belongs and touches nothing else, however both ends are split.

The spans are carried out by plain copies here: no connector, no checks.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.facts.kv import KvShard
from tandem.kv.codec import convert
from tandem.kv.connectors.contract import Spans
from tandem.kv.layout import row_bytes
from tandem.kv.transfer.read_plan import ChunkRange, ChunkTooSmall, ReadPlan
from tandem.kv.transfer.sources import shared_runs, uncovered
from tests.kv.split_workers import HEAD_DIM, Split, SplitWorker, model_kv, order_for

TOKENS = 24
splits = st.builds(
    Split,
    tensor_ranks=st.sampled_from([1, 2, 4]),
    stages=st.sampled_from([1, 2, 4]),
    block_size=st.sampled_from([2, 4, 8, 16]),
    dtype=st.sampled_from(["float64", "float32", "bfloat16", "float16", "int8"]),
)


def copy(target: np.ndarray, source: np.ndarray, spans: Spans) -> None:
    for remote, local, length in zip(spans.remote, spans.local, spans.lengths, strict=True):
        assert 0 <= remote <= remote + length <= len(source)
        assert 0 <= local <= local + length <= len(target)
        target[local : local + length] = source[remote : remote + length]


def carry_out(read_plan: ReadPlan, source: np.ndarray, target: np.ndarray, room_bytes: int) -> None:
    for chunk_range in read_plan.chunk_ranges(room_bytes):
        # Exactly as much scratch memory as allowed, at an offset.
        scratch = np.full(64 + room_bytes, 0xAB, np.uint8)
        data = read_plan.data_spans(chunk_range, 64)
        assert data.bytes <= room_bytes
        copy(scratch, source, read_plan.metadata_spans(chunk_range, 64))
        copy(scratch, source, read_plan.version_spans(read_plan.everything, 64))
        copy(target if chunk_range.straight else scratch, source, data)
        if not chunk_range.straight:
            mine, theirs = read_plan.target.layout.dtype, read_plan.source.layout.dtype
            offsets = read_plan.landed_runs(chunk_range, 64)
            runs = scratch[offsets[0] : offsets[-1] + read_plan.source.run_bytes]
            rows = runs.reshape(-1, row_bytes(theirs, HEAD_DIM))
            copy(
                target,
                convert(rows, theirs, mine).reshape(-1),
                read_plan.landing_spans(chunk_range),
            )
        assert (scratch[:64] == 0xAB).all()


def move(source: SplitWorker, target: SplitWorker, tokens: range, room_bytes: int) -> None:
    order = order_for(source.split, target.split, tokens.start, tokens.stop)
    values = model_kv(TOKENS, source.split, seed=3)
    begin = tokens.start // source.split.block_size * source.split.block_size
    source.write(values[begin:], list(order.source_blocks))
    expected = target.expected(order, values)
    heads = [memory[: layout.pool_offset].copy()
             for memory, layout in zip(target.memories, target.layouts, strict=True)]  # fmt: skip
    for mine in target.export.shards:
        for part in shared_runs(mine, source.export.shards):
            layouts = source.layouts[part.shard.rank], target.layouts[mine.rank]
            read_plan = ReadPlan.of_blocks(order, *layouts, part)
            carry_out(
                read_plan, source.memories[part.shard.rank], target.memories[mine.rank], room_bytes
            )
    for rank, pool in enumerate(target.pools):
        assert torch.equal(pool, expected[rank])
        assert np.array_equal(target.memories[rank][: len(heads[rank])], heads[rank])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    source=splits,
    target=splits,
    kv_heads=st.sampled_from([1, 2, 4]),
    ends=st.tuples(st.integers(0, TOKENS), st.integers(0, TOKENS)).filter(lambda e: e[0] != e[1]),
    room_bytes=st.sampled_from([1 << 20, 4000, 1500]),
)
def test_every_value_lands_where_it_belongs(source, target, kv_heads, ends, room_bytes):
    source, target = replace(source, kv_heads=kv_heads), replace(target, kv_heads=kv_heads)
    move(SplitWorker(source, 1), SplitWorker(target, 2), range(min(ends), max(ends)), room_bytes)


@pytest.mark.parametrize(("theirs", "mine"), list(product([1, 2, 4], repeat=2)))
def test_tensor_ranks_of_every_number(theirs, mine):
    move(SplitWorker(Split(theirs), 1), SplitWorker(Split(mine), 2), range(5, 23), 4000)


def read_plan(source: Split, target: Split, tokens: range) -> ReadPlan:
    source_worker, target_worker = SplitWorker(source, 1), SplitWorker(target, 2)
    mine, theirs = target_worker.export.shards[0], source_worker.export.shards
    order = order_for(source, target, tokens.start, tokens.stop)
    part = shared_runs(mine, theirs)[0]
    return ReadPlan.of_blocks(order, source_worker.layouts[0], target_worker.layouts[0], part)


def test_equal_ends_move_whole_blocks_as_one_span_and_join_neighbours():
    plan = read_plan(Split(), Split(), range(24))
    (chunk_range,) = plan.chunk_ranges(1 << 20)
    assert chunk_range == ChunkRange(0, 6, 0, 4 * 2 * 4, straight=True)
    # Blocks 2, 3, 4 are neighbours at both ends; 7, 0 and 5 stand alone.
    assert plan.order.source_blocks == (2, 3, 4, 7, 0, 5)
    block_bytes = plan.source.layout.block_bytes
    assert plan.data_spans(chunk_range, 0).lengths.tolist() == [3 * block_bytes, *[block_bytes] * 3]
    assert plan.metadata_spans(chunk_range, 0).lengths.tolist()[0] == 3 * plan.source.metadata_bytes


def test_blocks_wanted_in_part_do_not_land_straight():
    """The rest of such a block may be written by another move at the same time."""
    chunk_ranges = read_plan(Split(), Split(), range(2, 22)).chunk_ranges(1 << 20)
    assert [(w.first, w.end, w.straight) for w in chunk_ranges] == [
        (0, 1, False),
        (1, 5, True),
        (5, 6, False),
    ]


def test_a_slice_of_heads_is_one_span_a_layer_and_side():
    plan = read_plan(Split(), Split(tensor_ranks=2), range(4))
    (chunk_range,) = plan.chunk_ranges(1 << 20)
    assert len(plan.data_spans(chunk_range, 0).lengths) == 4 * 2
    assert plan.data_spans(chunk_range, 0).bytes == plan.target.layout.block_bytes


def test_blocks_larger_than_a_window_come_in_runs():
    plan = read_plan(Split(), Split(dtype="float16"), range(8))
    overhead = plan.source.metadata_bytes
    chunk_ranges = plan.chunk_ranges(overhead + 10 * plan.source.run_bytes)
    cuts = [(0, 10), (10, 20), (20, 30), (30, 32)]
    assert [(w.first, (w.first_run, w.end_run)) for w in chunk_ranges] == [
        *((0, cut) for cut in cuts),
        *((1, cut) for cut in cuts),
    ]
    with pytest.raises(ChunkTooSmall):
        plan.chunk_ranges(overhead + plan.source.run_bytes - 1)


def test_readers_of_replicated_heads_spread_over_the_replicas():
    shards = SplitWorker(Split(tensor_ranks=4, kv_heads=2), 1).export.shards
    assert [shared_runs(mine, shards)[0].shard.rank for mine in shards] == [0, 1, 2, 3]
    assert all(len(shared_runs(mine, shards)) == 1 for mine in shards)


def test_overlapping_shards_are_read_once_and_holes_are_left_out():
    mine = KvShard(0, 0, 2, 0, 4, ())
    theirs = (KvShard(0, 0, 2, 0, 1, ()), KvShard(1, 0, 2, 1, 2, ()), KvShard(2, 0, 1, 2, 2, ()))
    parts = shared_runs(mine, theirs)
    targets = np.concatenate([part.target for part in parts])
    assert len(set(targets.tolist())) == len(targets) == 2 * (2 * 4 - 1)
    assert parts[0].shard.rank == 1
    export = SplitWorker(Split(), 1).export
    assert uncovered(export) == 0
    assert uncovered(replace(export, shards=theirs)) == 4 * 4 - 7
