"""Where the memory of a peer is mapped, a transfers copies by itself: the same laws hold."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.facts.kv_export import EncodedCopies
from tandem.kernels.transfer.contract import Transfer
from tandem.kv.transfer.config import TransferConfig
from tests.kv.loop_connector import MappedLoopConnector
from tests.kv.split_workers import Split
from tests.kv.test_read_plan import splits
from tests.kv.test_transfer import SMALL, each_way, move_and_compare
from tests.kv.transfer_ranks import TOKENS, TRANSFER, Pair


def mapped(source: Split, target: Split, config: TransferConfig = SMALL, **more: object) -> Pair:
    return Pair(source, target, config, kind=MappedLoopConnector, **more)


def when_runs_were_copied(then: Callable[[], object]) -> Transfer:
    """A face that does something else after it copied runs."""

    def copy_runs(*arguments, **chunks):
        found = TRANSFER.copy_runs(*arguments, **chunks)
        then()
        return found

    return replace(TRANSFER, copy_runs=copy_runs)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    source=splits,
    target=splits,
    ends=st.tuples(st.integers(0, TOKENS), st.integers(0, TOKENS)).filter(lambda e: e[0] != e[1]),
    config=st.sampled_from([SMALL, TransferConfig(), replace(SMALL, checksums=False)]),
)
def test_all_that_arrives_is_right(source, target, ends, config):
    with mapped(source, target, config) as pair:
        move_and_compare(pair, min(ends), max(ends))


@each_way
def test_a_flipped_bit_at_the_source(splits):
    with mapped(*splits) as pair:
        order = pair.order(1, 22)
        pair.source.announce(order)
        pair.source.worker.memories[-1][pair.source.worker.layouts[-1].bytes - 1] ^= 1
        assert pair.transfers.move(1, order).arrived, "block 11 is not among them"
        layout = pair.source.worker.layouts[-1]
        pair.source.worker.memories[-1][layout.block_offset(order.source_blocks[2]) + 5] ^= 1
        report = pair.transfers.move(2, order)
        assert not report.arrived
        assert f"came corrupt, the first in block {order.source_blocks[2]}" in report.problem


@each_way
def test_a_version_that_changes_in_the_middle(splits):
    changed = []
    transfer = when_runs_were_copied(lambda: changed and changed.pop()())
    with mapped(*splits, transfer=transfer) as pair:
        order = pair.order(4, 8)
        pair.source.announce(order)
        export = pair.source.worker.export_blocks
        changed.append(lambda: export(TRANSFER, list(order.source_blocks), [50]))
        assert "version 50, not 7" in pair.transfers.move(1, order).problem
        pair.source.announce(order)
        assert pair.transfers.move(2, order).arrived


@each_way
def test_another_version_and_a_region_that_ends_too_early(splits):
    with mapped(*splits) as pair:
        order = pair.order(4, 24)
        pair.source.announce(order)
        stale = replace(order, source_versions=(99, *order.source_versions[1:]))
        assert "version 7, not 99" in pair.transfers.move(1, stale).problem
        peers = pair.connector.peers
        for peer, region in peers.items():
            peers[peer] = replace(region, bytes=region.bytes * 2 // 3)
        assert "outside the peer's region" in pair.transfers.move(2, order).problem


def test_a_peer_that_is_lost_is_reached_again():
    with mapped(Split(), Split()) as pair:
        order = pair.order(4, 24)
        pair.source.announce(order)
        assert pair.transfers.move(1, order).arrived
        del pair.connector.peers["source/1/0"]
        assert pair.transfers.move(2, order).problem == "source/1/0 is not connected"
        assert pair.transfers.move(3, order).arrived


@pytest.mark.parametrize("slots", [12, 4])
def test_encoded_copies(slots):
    """With a slot for each block all come narrowed; with few slots, those that are left."""
    source = Split(copies=EncodedCopies("bfloat16", slots))
    with mapped(source, Split(), replace(SMALL, wire_dtype="bfloat16")) as pair:
        order = pair.order(0, 24)
        pair.source.announce(order)
        stored = pair.source.values.clone()
        narrowed = stored.bfloat16().float()
        values = torch.cat(
            [narrowed[:4], (narrowed if slots == 12 else stored)[4:12], narrowed[12:]]
        )
        expected = pair.target.expected(order, values)[0]
        assert pair.transfers.move(1, order).arrived
        assert torch.equal(pair.target.pools[0], expected)
