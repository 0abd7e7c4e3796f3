"""KV that is narrowed for the way: as precise as promised, and never anything but a copy of what
was announced."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from tandem.facts.kv import EncodedCopies
from tandem.kv.codec import decode, encode
from tandem.kv.layout import copies_layout, encoded_copies, tags_of
from tandem.kv.transfer.config import TransferConfig
from tests.kv.split_workers import Split
from tests.kv.transfer_ranks import MappedLoopConnector, Pair

SMALL = TransferConfig(chunk_bytes=2048)
ALL_SLOTS = 12


def narrowed(values: torch.Tensor, wire: str) -> torch.Tensor:
    """What is left of values (of float32) after they were encoded."""
    rows = encode(values.numpy(), wire)
    return torch.from_numpy(np.array(decode(rows, wire)))


def pair_of(wire: str, target: Split, slots: int = ALL_SLOTS, **config: object) -> Pair:
    source = Split(2, copies=EncodedCopies(wire, slots))
    return Pair(source, target, replace(SMALL, wire_dtype=wire, **config))


WIRES = ["bfloat16", "float16", "int8", "float8_e4m3"]
TARGETS = [Split(), Split(4, 2), Split(block_size=8), Split(block_size=2, dtype="bfloat16")]


@pytest.mark.parametrize(("wire", "target"), list(product(WIRES, TARGETS)))
@pytest.mark.parametrize("checksums", [True, False])
def test_values_arrive_as_they_were_encoded(wire, target, checksums):
    with pair_of(wire, target, checksums=checksums) as pair:
        pair.move_and_compare(pair.announced(3, 22), narrowed(pair.source.values, wire))


def test_fewer_bytes_cross():
    moved = {}
    source = Split(copies=EncodedCopies("bfloat16", ALL_SLOTS))
    for wire in (None, "bfloat16"):
        with Pair(source, Split(), TransferConfig(wire_dtype=wire)) as pair:
            moved[wire] = pair.transfers.move(1, pair.announced(0, 24)).moved_bytes
    assert moved["bfloat16"] < moved[None] * 0.7


@pytest.mark.parametrize("wire", [None, "int8"])
def test_nothing_is_lost_unless_both_ends_ask_for_it(wire):
    source = Split(copies=EncodedCopies("float16", ALL_SLOTS))
    with Pair(source, Split(), replace(SMALL, wire_dtype=wire)) as pair:
        pair.move_and_compare(pair.announced(1, 22))


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 2048, 700])
def test_blocks_whose_copies_were_replaced_come_as_they_are_stored(chunk_bytes):
    """Six blocks and four slots: blocks 2, 3, 4, 7, 0 and 5 in slots 2, 3, 0, 3, 0 and 1."""
    with pair_of("int8", Split(), slots=4, chunk_bytes=chunk_bytes) as pair:
        order = pair.announced(0, 24)
        assert order.source_blocks == (2, 3, 4, 7, 0, 5)
        kept = narrowed(pair.source.values, "int8")
        for index in (1, 2):
            kept[4 * index : 4 * index + 4] = pair.source.values[4 * index : 4 * index + 4]
        pair.move_and_compare(order, kept)


@pytest.mark.parametrize("slots", [12, 4])
def test_copies_in_mapped_memory(slots):
    """With a slot for each block all come narrowed; with few slots, those that are left."""
    source = Split(copies=EncodedCopies("bfloat16", slots))
    with Pair(
        source, Split(), replace(SMALL, wire_dtype="bfloat16"), kind=MappedLoopConnector
    ) as pair:
        values = pair.source.values.bfloat16().float()
        if slots == 4:
            values[4:12] = pair.source.values[4:12]
        pair.move_and_compare(pair.announced(0, 24), values)


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("read", [1, 2])
def test_a_copy_that_is_replaced_while_it_is_read(checksums, read):
    """The block itself is what was announced, so it is read; what was half a copy is no more."""
    with pair_of("int8", Split(), checksums=checksums) as pair:

        def replace_copy(handle: int, _: object) -> None:
            # Reads take turns between the two ranks of the source.
            if handle // 2 == read:
                for shard, memory in zip(
                    pair.source.export.shards, pair.source.worker.memories, strict=True
                ):
                    layouts = copies_layout(pair.source.export, shard)
                    assert layouts
                    memory[layouts[0] :] = 7

        pair.connector.before_copy = replace_copy
        pair.move_and_compare(pair.announced(4, 8))


def test_a_block_that_was_handed_out_again_does_not_arrive_by_its_copy():
    with pair_of("int8", Split()) as pair:
        order = pair.announced(4, 8)
        assert not pair.transfers.move(1, replace(order, source_versions=(8,))).arrived


def test_tags_differ_by_block_and_version():
    blocks, versions = np.meshgrid(np.arange(12), np.arange(1, 50, dtype=np.uint64))
    tags = tags_of(blocks.ravel(), versions.ravel(), 12)
    assert len(set(tags.tolist())) == blocks.size
    assert tags.min() > 0


def test_what_a_worker_should_keep():
    assert encoded_copies("float32", 1000, None) is None
    assert encoded_copies("bfloat16", 1000, "bfloat16") is None
    assert encoded_copies("float32", 1000, "int8") == EncodedCopies("int8", 125)
    assert encoded_copies("float32", 40, "int8") == EncodedCopies("int8", 40)
