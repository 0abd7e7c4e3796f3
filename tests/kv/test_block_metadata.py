"""A metadata tells the very bytes it was made for from all others."""

from copy import copy

import numpy as np
import pytest

from tandem.kernels.transfer import REFERENCE, choose_transfer
from tandem.kv.layout import KvLayout, RegionLayout
from tandem.kv.region import SharedRegion
from tandem.kv.transfer.export import NOT_COMPUTED, BlockMetadata, parse_metadata

LAYOUT = RegionLayout(KvLayout(2, 3, 4, 8, "bfloat16"), 9)


@pytest.fixture(params=["native", "reference"])
def transfer(request):
    return choose_transfer(allow_native=request.param == "native")


@pytest.fixture
def shared():
    region = SharedRegion.create(LAYOUT.bytes, "test")
    start = LAYOUT.block_offset(0)
    region.view[start:] = np.random.default_rng(1).integers(0, 256, LAYOUT.bytes - start)
    return region


def headers_of(shared, blocks):
    """What a peer sees after it has read the metadata of these blocks."""
    parts = [
        shared.view[block * LAYOUT.metadata_bytes :][: LAYOUT.metadata_bytes].tobytes()
        for block in blocks
    ]
    return parse_metadata(b"".join(parts), LAYOUT)


def test_what_is_published_is_read(shared, transfer):
    BlockMetadata(shared.view, LAYOUT, transfer).write_metadata([7, 0, 3], [5, 2**40, 1])
    versions, checksums = headers_of(shared, [0, 3, 7, 8])
    assert versions.tolist() == [2**40, 1, 5, 0]
    assert checksums.shape == (4, LAYOUT.runs_per_block)
    assert not checksums[3].any()
    for row, block in enumerate([0, 3, 7]):
        start = LAYOUT.block_offset(block)
        offsets = start + np.arange(LAYOUT.runs_per_block, dtype=np.int64) * LAYOUT.run_bytes
        wanted = REFERENCE.checksum_runs(shared.region.address, offsets, LAYOUT.run_bytes)
        assert checksums[row].tolist() == wanted.tolist()


def test_every_run_has_its_own_checksum(shared, transfer):
    metadata = BlockMetadata(shared.view, LAYOUT, transfer)
    metadata.write_metadata([4], [1])
    _, before = headers_of(shared, [4])
    for run in range(LAYOUT.runs_per_block):
        place = LAYOUT.block_offset(4) + run * LAYOUT.run_bytes + 5
        shared.view[place] ^= 1
        changed = metadata.computed(np.array([4], dtype=np.int64)) != before
        assert np.flatnonzero(changed).tolist() == [run]
        shared.view[place] ^= 1


def test_blocks_are_left_alone(shared, transfer):
    start = LAYOUT.block_offset(0)
    before = shared.view[start:].tobytes()
    BlockMetadata(shared.view, LAYOUT, transfer).write_metadata(range(9), [1] * 9)
    assert shared.view[start:].tobytes() == before


def test_without_checksums_only_the_generation_stands(shared, transfer):
    metadata = BlockMetadata(shared.view, LAYOUT, transfer)
    metadata.write_metadata([2], [1])
    metadata.write_metadata([2], [6], checksums=False)
    versions, checksums = headers_of(shared, [2])
    assert versions.tolist() == [6]
    assert (checksums == NOT_COMPUTED).all()
    metadata.write_metadata([], [])


def test_a_header_names_nothing_while_it_is_written(shared, transfer):
    """Else whoever reads meanwhile finds the old version with checksums of the new bytes."""
    seen = []

    def watched(*arguments, **options):
        seen.append(headers_of(shared, [2, 3])[0].tolist())
        return transfer.checksum_runs(*arguments, **options)

    watching = copy(transfer)
    watching.checksum_runs = watched
    metadata = BlockMetadata(shared.view, LAYOUT, watching)
    for version in (1, 2):
        metadata.write_metadata([2], [version])
    metadata.write_metadata([3], [5])
    assert seen == [[0, 0], [0, 0], [2, 0]]


def test_a_block_beyond_the_table_is_a_mistake(shared, transfer):
    for block in (-1, 9):
        with pytest.raises(AssertionError):
            BlockMetadata(shared.view, LAYOUT, transfer).write_metadata([block], [1])
