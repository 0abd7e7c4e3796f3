"""What cannot be read is refused in one clear sentence, and nothing that is claimed can crash."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.facts.kv import EncodedCopies, Endpoint, KvExport, KvShard
from tandem.kv.layout import RegionLayout, shard_layout
from tandem.kv.transfer.read_plan import ReadPlan
from tandem.kv.transfer.sources import objection, order_objection, shared_runs
from tests.kv.split_workers import Split, SplitWorker, order_for


def export_of(split: Split, *connectors: str) -> KvExport:
    export = SplitWorker(split, 1).export
    ends = tuple(Endpoint(name, b"") for name in connectors or ("shm", "tcp"))
    return replace(export, shards=tuple(replace(s, endpoints=ends) for s in export.shards))


MINE = export_of(Split())


@pytest.mark.parametrize(
    "theirs",
    [
        Split(),
        Split(tensor_ranks=4, stages=2),
        Split(block_size=16),
        Split(block_size=2, dtype="bfloat16"),
        Split(dtype="int8"),
    ],
)
def test_workers_of_one_model_understand_each_other(theirs):
    assert objection(MINE, export_of(theirs)) is None
    assert objection(export_of(theirs), MINE) is None
    assert objection(MINE, export_of(theirs, "nixl", "tcp")) is None


WRONG = {
    "at revision '2'": replace(MINE, revision="2"),
    "'other'": replace(MINE, model="other"),
    "8 layers, not 4": replace(MINE, geometry=replace(MINE.geometry, layers=8)),
    "5 values a head, not 3": replace(MINE, geometry=replace(MINE.geometry, head_dim=5)),
    "blocks of 6 and of 4": replace(MINE, geometry=replace(MINE.geometry, block_size=6)),
    "stored as 'int3'": replace(MINE, geometry=replace(MINE.geometry, dtype="int3")),
    "0 blocks": replace(MINE, block_count=0),
    "leave out 16": replace(MINE, shards=()),
    "9 blocks as 'int3'": replace(MINE, encoded=EncodedCopies("int3", 9)),
    "13 blocks as 'int8'": replace(MINE, encoded=EncodedCopies("int8", 13)),
    "one rank": replace(MINE, shards=MINE.shards * 2),
    "does not have": replace(MINE, shards=(replace(MINE.shards[0], first_head=1),)),
    "offers nixl, not shm, tcp": export_of(Split(), "nixl"),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_named(words):
    assert words in (objection(MINE, WRONG[words]) or "")


ORDER = order_for(Split(), Split(), 2, 21)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"end_token": 2}, "no range"),
        ({"first_token": -1}, "no range"),
        ({"first_token": 4}, "5 blocks of the source"),
        ({"target_blocks": ORDER.target_blocks[1:]}, "6 blocks of this worker"),
        ({"source_blocks": (12, *ORDER.source_blocks[1:])}, "blocks 0 to 11"),
        ({"target_blocks": (-1, *ORDER.target_blocks[1:])}, "blocks 0 to 11"),
        ({"target_blocks": (0,) * 6}, "twice"),
        ({"source_versions": (1,)}, "differ in number"),
        ({"source_versions": (0, 1, 2, 3, 4, 5)}, "out of range"),
        ({"source_versions": (1 << 64, 1, 2, 3, 4, 5)}, "out of range"),
    ],
)
def test_orders_without_sense(change, words):
    assert order_objection(ORDER, MINE, MINE) is None
    assert words in (order_objection(replace(ORDER, **change), MINE, MINE) or "")


wild = st.one_of(
    st.integers(-3, 20), st.integers(-(1 << 70), 1 << 70), st.sampled_from([2**31, 2**63, 2**64])
)
lists = st.lists(wild, max_size=8).map(tuple)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_no_claim_crashes_anything(data):
    """Whatever passes can be planned, and stays within both regions."""

    def corrupt(value, kind):
        names = [f.name for f in fields(value) if isinstance(getattr(value, f.name), kind)]
        for name in data.draw(st.lists(st.sampled_from(names), max_size=2)):
            value = replace(value, **{name: data.draw(wild if kind is int else lists)})
        return value

    geometry = corrupt(MINE.geometry, int)
    shards = [corrupt(shard, int) for shard in export_of(Split(2, 2)).shards]
    theirs = replace(corrupt(MINE, int), geometry=geometry, shards=tuple(shards))
    order = corrupt(corrupt(ORDER, int), tuple)
    if objection(MINE, theirs) or order_objection(order, MINE, theirs):
        return
    mine: KvShard = MINE.shards[0]
    target = RegionLayout(shard_layout(MINE.geometry, mine), MINE.block_count)
    for part in shared_runs(mine, theirs.shards):
        source = RegionLayout(shard_layout(theirs.geometry, part.shard), theirs.block_count)
        read_plan = ReadPlan.of_blocks(order, source, target, part)
        for chunk_range in read_plan.chunk_ranges(1 << 24):
            spans = read_plan.data_spans(chunk_range, 0)
            assert spans.remote.min() >= 0
            assert (spans.remote + spans.lengths).max() <= source.bytes
