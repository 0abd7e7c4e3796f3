"""What a transfer says arrived is right in every byte; whatever goes wrong on the way is noticed.
Where the memory of a peer is mapped, a transfer copies by itself: the same laws hold."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.facts.kv import EncodedCopies
from tandem.kernels.transfer import Transfer
from tandem.kv.transfer.config import TransferConfig
from tandem.kv.transfer.export import version_words
from tests.kv.ending import closing
from tests.kv.split_workers import Split, SplitWorker, order_for
from tests.kv.test_read_plan import splits
from tests.kv.transfer_ranks import (
    SOURCE,
    TOKENS,
    TRANSFER,
    LoopConnector,
    LoopNet,
    MappedLoopConnector,
    Pair,
    Source,
    TransferRank,
)

SMALL = TransferConfig(chunk_bytes=2048)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from([LoopConnector, MappedLoopConnector]),
    source=splits,
    target=splits,
    ends=st.tuples(st.integers(0, TOKENS), st.integers(0, TOKENS)).filter(lambda e: e[0] != e[1]),
    config=st.sampled_from(
        [SMALL, TransferConfig(), TransferConfig(chunk_bytes=4096, checksums=False)]
    ),
)
def test_all_that_arrives_is_right(kind, source, target, ends, config):
    with Pair(source, target, config, kind=kind) as pair:
        pair.move_and_compare(pair.announced(min(ends), max(ends)))


@pytest.mark.parametrize(("source", "target"), list(product([1, 2, 4], repeat=2)))
def test_ranks_of_every_number(source, target):
    with Pair(Split(source, kv_heads=2), Split(target, 2, kv_heads=2), SMALL) as pair:
        pair.move_and_compare(pair.announced(3, 23))


CODES = {
    "both": (Split(2, dtype="int8"), Split(dtype="int8")),
    "the source": (Split(4, 2, dtype="int8"), Split(block_size=8)),
    "the target": (Split(), Split(2, dtype="int8")),
}


@pytest.mark.parametrize("splits", CODES.values(), ids=CODES)
def test_kv_that_is_stored_as_codes(splits):
    with Pair(*splits, SMALL) as pair:
        pair.move_and_compare(pair.announced(3, 22))


SPLITS = {
    "straight": (Split(), Split()),
    "converted": (Split(), Split(dtype="bfloat16")),
    "from four ranks": (Split(4), Split()),
}
each_way = pytest.mark.parametrize("splits", SPLITS.values(), ids=SPLITS)
each_kind = pytest.mark.parametrize(
    "kind", [LoopConnector, MappedLoopConnector], ids=["read", "mapped"]
)


@each_kind
@each_way
@pytest.mark.parametrize("bit", range(0, 8, 3))
def test_a_flipped_bit_at_the_source(kind, splits, bit):
    with Pair(*splits, SMALL, kind=kind) as pair:
        order = pair.announced(1, 22)
        memory, layout = pair.source.worker.memories[-1], pair.source.worker.layouts[-1]
        memory[layout.bytes - 1] ^= 1 << bit
        assert pair.transfers.move(1, order).arrived, "block 11 is not among them"
        block = order.source_blocks[-1]
        memory[layout.block_offset(block) + layout.layout.block_bytes - 1] ^= 1 << bit
        report = pair.transfers.move(2, order)
        assert not report.arrived
        assert f"came corrupt, the first in block {block}" in report.problem


@each_way
def test_a_bit_flipped_on_the_way(splits):
    with Pair(*splits, SMALL) as pair:
        order = pair.announced(4, 8)
        right = [memory.copy() for memory in pair.source.worker.memories]
        # The first read is of metadata, the second of runs.
        pair.connector.before_copy = lambda handle, _: corrupt(pair) if handle == 1 else None
        report = pair.transfers.move(1, order)
        assert not report.arrived
        pair.connector.before_copy = None
        for memory, good in zip(pair.source.worker.memories, right, strict=True):
            memory[:] = good
        assert pair.transfers.move(2, order).arrived


def corrupt(pair: Pair) -> None:
    source = pair.source.worker
    for memory, layout in zip(source.memories, source.layouts, strict=True):
        memory[layout.pool_offset :] ^= 16


@each_kind
@each_way
@pytest.mark.parametrize("checksums", [True, False])
def test_another_version(kind, splits, checksums):
    with Pair(*splits, replace(SMALL, checksums=checksums), kind=kind) as pair:
        order = pair.announced(1, 22)
        stale = replace(order, source_versions=(*order.source_versions[:-1], 99))
        report = pair.transfers.move(1, stale)
        assert not report.arrived
        assert "not what was announced: version 12, not 99" in report.problem


@each_way
@pytest.mark.parametrize("checksums", [True, False])
def test_a_version_that_changes_in_the_middle(splits, checksums):
    """The bytes are the same, so that nothing but the version can tell."""
    with Pair(*splits, replace(SMALL, checksums=checksums)) as pair:
        order = pair.announced(4, 8)

        def hand_out_again(handle: int, _: object) -> None:
            if handle == 1:
                pair.source.worker.export_blocks(TRANSFER, list(order.source_blocks), [50])

        pair.connector.before_copy = hand_out_again
        report = pair.transfers.move(1, order)
        assert not report.arrived
        assert "version 50" in report.problem


def when_runs_were_copied(then: Callable[[], object]) -> Transfer:
    """A face that does something else after it copied runs."""

    def copy_runs(*arguments, **chunks):
        found = TRANSFER.copy_runs(*arguments, **chunks)
        then()
        return found

    transfer = copy(TRANSFER)
    transfer.copy_runs = copy_runs
    return transfer


@each_way
def test_a_version_that_changes_while_runs_are_copied(splits):
    changed = []
    transfer = when_runs_were_copied(lambda: changed and changed.pop()())
    with Pair(*splits, SMALL, kind=MappedLoopConnector, transfer=transfer) as pair:
        order = pair.announced(4, 8)
        export = pair.source.worker.export_blocks
        changed.append(lambda: export(TRANSFER, list(order.source_blocks), [50]))
        assert "version 50, not 7" in pair.transfers.move(1, order).problem
        pair.source.announce(order)
        assert pair.transfers.move(2, order).arrived


def test_a_mapped_peer_that_is_lost_is_reached_again():
    with Pair(Split(), Split(), kind=MappedLoopConnector) as pair:
        order = pair.announced(4, 24)
        assert pair.transfers.move(1, order).arrived
        del pair.connector.peers["source/1/0"]
        assert pair.transfers.move(2, order).problem == "source/1/0 is not connected"
        assert pair.transfers.move(3, order).arrived


def test_a_block_whose_header_was_never_written():
    with Pair(Split(), Split()) as pair:
        assert "version 0" in pair.transfers.move(1, pair.order(0, 4)).problem


def test_a_source_that_computes_no_checksums():
    with Pair(Split(), Split()) as pair:
        order = pair.announced(0, 4)
        layout = pair.source.worker.layouts[0]
        start = order.source_blocks[0] * layout.metadata_bytes
        pair.source.worker.memories[0][start + 8 : start + layout.metadata_bytes] = 0
        assert "no checksums" in pair.transfers.move(1, order).problem


@each_kind
@each_way
def test_a_region_that_ends_too_early(kind, splits):
    with Pair(*splits, kind=kind) as pair:
        order = pair.announced(0, 24)
        for description, region in pair.net.regions.items():
            pair.net.regions[description] = replace(region, bytes=region.bytes * 2 // 3)
        report = pair.transfers.move(1, order)
        assert not report.arrived
        assert "outside the peer's region" in report.problem


@each_way
@pytest.mark.parametrize("read", range(3))
def test_a_peer_that_dies_at_any_stage(splits, read):
    with Pair(*splits) as pair:
        order = pair.announced(4, 8)
        pair.connector.problems[read] = "connection lost"
        report = pair.transfers.move(1, order)
        assert (report.arrived, report.problem) == (False, "connection lost")
        # The next move connects anew.
        pair.connector.problems.clear()
        assert pair.transfers.move(2, order).arrived
        assert len(pair.connector.connected) == len(pair.source.export.shards) + 1


def test_the_next_connector_is_taken_when_one_does_not_lead_there():
    net = LoopNet()
    source, target = Source(Split(), net, ("far", "near")), SplitWorker(Split(), 2)
    near, far = LoopConnector(net, "near"), LoopConnector(net, "far")
    near.refusal = "not on this host"
    transfers = TransferRank(target, 0, [near, far])
    transfers.transfers.add_source(*SOURCE, source.export)
    order = order_for(Split(), Split(), 0, 8)
    source.announce(order)
    assert transfers.move(1, order).connector == "far"
    assert transfers.move(2, order).arrived
    assert len(near.connected) == 1, "not tried again at once"
    far.refusal = "nobody there"
    transfers.transfers.forget_source(*SOURCE)
    transfers.transfers.add_source(*SOURCE, source.export)
    report = transfers.move(3, order)
    assert report.problem == "no way to source/1/0: near: not on this host; far: nobody there"
    assert len(near.connected) == 2, "forgetting a peer forgets that it was unreachable"
    near.refusal = ""
    transfers.clock.now_ns = 2_000_000_000
    assert transfers.move(4, order).connector == "near"
    transfers.close()


def test_connectors_that_nobody_shares():
    net = LoopNet()
    source, target = Source(Split(), net, ("far",)), SplitWorker(Split(), 2)
    transfers = TransferRank(target, 0, [LoopConnector(net, "near")])
    transfers.transfers.add_source(*SOURCE, source.export)
    report = transfers.move(1, order_for(Split(), Split(), 0, 8))
    assert report.problem == "no way to source/1/0: no connector in common"
    transfers.close()


def test_what_cannot_be_done_ends_at_once_with_the_reason():
    with Pair(Split(), Split(block_size=8), replace(SMALL, chunk_bytes=64)) as pair:
        order = pair.order(0, 8)
        move = pair.transfers.move
        assert "do not fit into chunks" in move(1, order).problem
        assert "nothing is known of source" in move(2, replace(order, incarnation="2")).problem
        assert "2 blocks of the source" in move(3, replace(order, source_blocks=(1,))).problem
        other = replace(pair.source.export, revision="2")
        pair.transfers.transfers.add_source("source", "2", other)
        assert "revision '2'" in move(4, replace(order, incarnation="2")).problem


def test_a_move_that_takes_too_long():
    with Pair(Split(), Split()) as pair:
        order = pair.announced(0, 8)
        pair.connector.released.clear()
        pair.transfers.transfers.start_transfer(1, order)
        assert pair.connector.reading.wait(20)
        pair.transfers.clock.now_ns = 61_000_000_000
        assert pair.transfers.report_of(1).problem == "not done after 60 s"
        pair.connector.released.set()
        pair.transfers.clock.now_ns = 0
        assert pair.transfers.move(2, order).arrived


@pytest.mark.parametrize("verb", ["stop", "forget"])
def test_nobody_waits_for_it_any_more(verb):
    with Pair(Split(4), Split()) as pair:
        order = pair.announced(0, 24)
        pair.connector.released.clear()
        pair.transfers.transfers.start_transfer(1, order)
        if verb == "stop":
            pair.transfers.transfers.stop_transfer(1)
            assert pair.transfers.report_of(1).problem == "stopped"
        else:
            pair.transfers.transfers.forget_source(*SOURCE)
            assert pair.transfers.report_of(1).problem == "source is gone"
            assert not pair.connector.peers
            assert "nothing is known" in pair.transfers.move(2, order).problem
        pair.transfers.transfers.stop_transfer(1)


def test_more_moves_than_allowed():
    with Pair(Split(), Split(), replace(SMALL, max_transfers=1)) as pair:
        order = pair.announced(0, 8)
        pair.connector.released.clear()
        pair.transfers.transfers.start_transfer(1, order)
        assert "under way already" in pair.transfers.move(2, order).problem
        pair.connector.released.set()
        assert pair.transfers.report_of(1).arrived


def test_many_moves_at_once_do_not_disturb_each_other():
    """Twelve of them, with room for three chunks; every one has blocks of its own."""
    split = Split(blocks=72)
    config = TransferConfig(chunk_bytes=1600, chunks_in_flight=3)
    with Pair(split, replace(split, tensor_ranks=2), config) as pair:
        orders = []
        for index in range(12):
            blocks = tuple(range(6 * index, 6 * index + 6))
            versions = (index + 1,) * 6
            orders.append(
                replace(
                    pair.order(0, 24),
                    source_blocks=blocks,
                    target_blocks=blocks[::-1],
                    source_versions=versions,
                )
            )
            pair.source.announce(orders[-1])
        for move_id, order in enumerate(orders):
            pair.transfers.transfers.start_transfer(move_id, order)
        ended = [pair.transfers.ended.get(timeout=20) for _ in orders]
        assert sorted(each.move_id for each in ended) == list(range(12))
        assert all(each.report.arrived for each in ended)
        wanted = pair.target.pools[0].clone()
        for order in orders:
            wanted[list(order.target_blocks)] = pair.expected(order)[0][list(order.target_blocks)]
        assert torch.equal(pair.target.pools[0], wanted)


@contextmanager
def two_engines(source: Split, config: TransferConfig) -> Iterator[tuple[TransferRank, ...]]:
    """One that exports, and one that reads from it."""
    net = LoopNet()
    theirs, mine = SplitWorker(source, 1), SplitWorker(Split(), 2)
    with (
        closing(TransferRank(theirs, 0, [LoopConnector(net)], config)) as exporting,
        closing(TransferRank(mine, 0, [LoopConnector(net)], config)) as reading,
    ):
        shard = replace(theirs.export.shards[0], endpoints=exporting.transfers.endpoints())
        reading.transfers.add_source(*SOURCE, replace(theirs.export, shards=(shard,)))
        yield exporting, reading


def test_what_an_engine_exports_another_can_read():
    with two_engines(Split(), replace(SMALL, export_bytes=1)) as (exporting, reading):
        order = order_for(Split(), Split(), 0, 24)
        exporting.transfers.export_blocks(5, order.source_blocks, order.source_versions)
        exporting.transfers.export_blocks(6, (), ())
        assert [exporting.exported.get(timeout=20) for _ in range(2)] == [5, 6]
        assert reading.move(1, order).arrived
        read = reading.worker.pools[0][list(order.target_blocks)]
        assert torch.equal(read, exporting.worker.pools[0][list(order.source_blocks)])


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("copies", [None, EncodedCopies("int8", 12)])
def test_a_block_that_was_given_to_others_is_not_exported_under_its_old_version(checksums, copies):
    """Two requests shared it and are gone; the second export comes late."""
    config = TransferConfig(checksums=checksums, wire_dtype="int8")
    with two_engines(Split(copies=copies), config) as (exporting, reading):
        theirs, order = exporting.worker, order_for(Split(), Split(), 0, 24)
        blocks, versions = list(order.source_blocks), order.source_versions

        def export(export_id: int, versions: tuple[int, ...]) -> None:
            exporting.transfers.export_blocks(export_id, blocks, versions)
            assert exporting.exported.get(timeout=20) == export_id

        export(1, versions)
        right = theirs.pools[0][blocks].clone()
        # As an engine does before it writes to blocks that were handed out again.
        version_words(theirs.memories[0], theirs.layouts[0])[blocks] = 0
        theirs.pools[0][blocks] = -1
        export(2, versions)
        report = reading.move(1, order)
        assert not report.arrived
        assert "version 0" in report.problem
        if copies is None:
            newer = replace(order, source_versions=tuple(each + 1 for each in versions))
            export(3, newer.source_versions)
            assert reading.move(2, newer).arrived
            assert not torch.equal(reading.worker.pools[0][list(order.target_blocks)], right)


def test_what_own_blocks_held_is_invalidated_before_a_transfer_writes_to_them():
    with Pair(Split(), Split()) as pair:
        order = pair.order(0, 24)
        pair.target.export_blocks(TRANSFER, list(range(12)), [9] * 12)
        words = version_words(pair.target.memories[0], pair.target.layouts[0])
        found: list[list[int]] = []
        pair.connector.before_copy = lambda *_: found.append(words.tolist())
        pair.move_and_compare(pair.announced(0, 24))
        wanted = [0 if block in order.target_blocks else 9 for block in range(12)]
        assert found
        assert all(each == wanted for each in found)


def test_stopping_ends_transfers_that_hang():
    with Pair(Split(), Split(), replace(SMALL, cancel_s=0.2)) as pair:
        order = pair.announced(0, 8)
        pair.connector.released.clear()
        pair.connector.ends_cancelled = False
        pair.transfers.transfers.start_transfer(1, order)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_breaks_reports_it():
    """Two moves of one id are the caller's mistake, and nothing after it can be trusted."""
    pair = Pair(Split(), Split())
    pair.connector.released.clear()
    order = pair.order(0, 8)
    pair.transfers.transfers.start_transfer(1, order)
    pair.transfers.transfers.start_transfer(1, order)
    assert pair.transfers.failed.wait(20)
    pair.transfers.transfers.stop_transfers()
