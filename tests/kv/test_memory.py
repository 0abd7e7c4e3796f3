"""Where KV lies: blocks are contiguous, layers are views, and every difference shows. A region is
seen by all who map it, of a size that nobody can change, and gone with its views."""

import mmap
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.kv.layout import EncodedLayout, KvLayout, RegionLayout
from tandem.kv.region import WARM_BYTES, SharedRegion, mapped
from tandem.kv.store import KvStore, exported_pool
from tests.waiting import until

LAYOUT = KvLayout(layers=3, kv_heads=2, block_size=4, head_dim=8, dtype="bfloat16")


def test_codes_have_their_scale_in_the_row():
    layout = replace(LAYOUT, dtype="int8")
    assert (layout.row_bytes, layout.pool_shape(5)) == (12, (5, 3, 2, 2, 4, 12))
    store = KvStore(layout, 5, torch.device("cpu"))
    assert store.pool_BL2KSD.nbytes == store.bytes == 5 * layout.block_bytes
    assert layout.describe() != LAYOUT.describe()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_bytes_and_shapes(dtype):
    layout = replace(LAYOUT, dtype=dtype)
    store = KvStore(layout, 5, torch.device("cpu"))
    assert tuple(store.pool_BL2KSD.shape) == layout.pool_shape(5) == (5, 3, 2, 2, 4, 8)
    assert layout.block_bytes == store.pool_BL2KSD[0].nbytes == 4 * layout.token_bytes
    assert store.bytes == store.pool_BL2KSD.nbytes == 5 * layout.block_bytes
    assert store.device == torch.device("cpu")


def test_a_block_is_one_span_and_a_layer_a_view():
    store = KvStore(LAYOUT, 5, torch.device("cpu"))
    store.pool_BL2KSD.zero_()
    assert store.pool_BL2KSD[3].is_contiguous()
    assert store.layer(1).shape == (5, 2, 2, 4, 8)
    store.layer(1)[3, 0, 1, 2] = 1.0
    assert store.pool_BL2KSD[3][1, 0, 1, 2].eq(1.0).all()
    assert store.pool_BL2KSD.sum() == 8
    assert store.layer(1) is store.layer(1)


def test_descriptions_differ_by_layout():
    changes = [
        {"layers": 4}, {"kv_heads": 3}, {"block_size": 8}, {"head_dim": 4}, {"dtype": "float16"},
    ]  # fmt: skip
    layouts = [LAYOUT, *(replace(LAYOUT, **change) for change in changes)]
    assert len({layout.describe() for layout in layouts}) == len(layouts)
    assert replace(LAYOUT).describe() == LAYOUT.describe()


def test_the_description_is_stable():
    """Changing it parts a cluster into workers that cannot exchange blocks: do so knowingly."""
    expected = b"kv/1 layer,2,kv_head,token,head_dim [3,2,2,4,8] bfloat16"
    assert LAYOUT.describe() == expected


def test_a_rank_holds_its_share_of_every_block():
    share = LAYOUT.share(layers=1, kv_heads=1)
    assert share.block_bytes * 6 == LAYOUT.block_bytes
    assert (share.block_size, share.head_dim, share.dtype) == (4, 8, "bfloat16")
    assert LAYOUT.row_bytes == 16


@pytest.mark.parametrize(("dtype", "row_bytes"), [("float32", 32), ("int8", 12)])
def test_the_same_blocks_in_another_precision(dtype, row_bytes):
    encoded = EncodedLayout(LAYOUT, dtype)
    assert encoded.row_bytes == row_bytes
    assert encoded.block_bytes * LAYOUT.row_bytes == LAYOUT.block_bytes * row_bytes


def test_all_maps_see_the_same_bytes():
    shared = SharedRegion.create(10_000, "test")
    assert not shared.view.any()
    other = mapped(shared.region.descriptor, 10_000)
    shared.view[9_999] = 7
    assert other[9_999] == 7
    assert not other.flags.writeable
    assert shared.region.address == shared.view.ctypes.data
    assert other.ctypes.data != shared.region.address


def test_nobody_can_change_the_size():
    shared = SharedRegion.create(10_000, "test")
    for size in (0, 20_000):
        with pytest.raises(PermissionError):
            os.ftruncate(shared.region.descriptor, size)


def test_views_outlive_the_region():
    shared = SharedRegion.create(10_000, "outlived")
    view, descriptor = shared.view[:100], shared.region.descriptor
    shared.release_region()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    view[:] = 3
    assert view.sum() == 300
    assert "memfd:outlived" in Path("/proc/self/maps").read_text()
    del view
    assert "memfd:outlived" not in Path("/proc/self/maps").read_text()
    shared.release_region()


def test_too_much_memory_leaves_nothing_behind():
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match=r"memory|argument|large"):
        SharedRegion.create(2**62, "test")
    # Fewer may be left: garbage of other tests is collected at any time.
    assert set(Path("/proc/self/fd").iterdir()) <= before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("blocks", [1, 7, 300])
def test_metadata_and_blocks_tile_the_region(dtype, blocks):
    layout = RegionLayout(replace(LAYOUT, dtype=dtype), blocks)
    assert layout.runs_per_block == 3 * 2 * 2
    assert layout.runs_per_block * layout.run_bytes == layout.layout.block_bytes
    assert layout.metadata_bytes >= 8 * (1 + layout.runs_per_block)
    assert layout.metadata_bytes % 64 == 0
    starts = [block * layout.metadata_bytes for block in range(blocks)]
    assert starts[0] == 0
    assert all(other - one == layout.metadata_bytes for one, other in pairwise(starts))
    assert starts[-1] + layout.metadata_bytes <= layout.block_offset(0)
    assert layout.block_offset(0) % mmap.PAGESIZE == 0
    assert layout.block_offset(blocks - 1) + layout.layout.block_bytes == layout.bytes


def test_a_store_over_a_region_writes_into_it():
    layout = RegionLayout(LAYOUT, 5)
    shared = SharedRegion.create(layout.bytes, "test")
    exported = exported_pool(shared.view, layout)
    store = KvStore(LAYOUT, 5, torch.device("cpu"), exported)
    assert store.bytes == store.pool_BL2KSD.nbytes == exported.memory.nbytes
    store.layer(2)[3, 1, 1] = 1.5
    start = layout.block_offset(3) + (2 * 2 * 2 + 1 * 2 + 1) * layout.run_bytes
    run = shared.view[start : start + layout.run_bytes]
    assert torch.from_numpy(run).view(torch.bfloat16).eq(1.5).all()
    assert shared.view.astype(bool).sum() == run.astype(bool).sum()
    with pytest.raises(AssertionError):
        KvStore(LAYOUT, 6, torch.device("cpu"), exported)


def test_memory_is_there_before_it_is_touched():
    shared = SharedRegion.create(3 * WARM_BYTES + 5, "warmed")
    shared.view[7] = 7
    shared.warm()
    shared._warming._thread.join(20)
    assert not shared._warming._thread.alive
    pages = -(-shared.region.bytes // mmap.PAGESIZE)
    assert os.fstat(shared.region.descriptor).st_blocks * 512 == pages * mmap.PAGESIZE
    assert shared.view[7] == 7
    assert shared.view.astype(bool).sum() == 1
    shared.release_region()


def test_memory_that_is_not_used_is_not_taken():
    ahead_bytes = 4 * WARM_BYTES
    shared = SharedRegion.create(8 << 30, "ahead")
    watcher = os.dup(shared.region.descriptor)

    def taken_bytes():
        return os.fstat(watcher).st_blocks * 512

    shared.warm(ahead_bytes)
    until(lambda: taken_bytes() >= ahead_bytes, 20)
    shared.used_to(2 * WARM_BYTES)
    shared.used_to(WARM_BYTES)
    until(lambda: taken_bytes() >= 2 * WARM_BYTES + ahead_bytes, 20)
    shared.release_region()
    # Its thread has ended; no more was ever wanted.
    assert taken_bytes() == 2 * WARM_BYTES + ahead_bytes
    os.close(watcher)


def test_a_store_tells_how_far_it_is_used():
    layout = RegionLayout(LAYOUT, 5)
    shared = SharedRegion.create(layout.bytes, "used")
    told = []
    exported = exported_pool(shared.view, layout, told.append)
    store = KvStore(LAYOUT, 5, torch.device("cpu"), exported)
    store.invalidate_blocks(np.array([3, 1], dtype=np.int32))
    store.invalidate_blocks(np.array([], dtype=np.int32))
    assert told == [layout.block_offset(3) + LAYOUT.block_bytes]
    shared.release_region()


def test_a_region_is_closed_while_it_is_warmed():
    shared = SharedRegion.create(8 << 30, "closed")
    watcher = os.dup(shared.region.descriptor)
    shared.warm()
    shared.release_region()
    assert "memfd:closed" not in Path("/proc/self/maps").read_text()
    assert os.fstat(watcher).st_blocks * 512 < 8 << 30
    os.close(watcher)
