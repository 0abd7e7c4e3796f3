"""Shared memory: seen by all who map it, of a size that nobody can change, gone with its views."""

import mmap
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tandem.kv.layout import KvLayout, RegionLayout
from tandem.kv.region import WARM_BYTES, SharedRegion, mapped
from tandem.kv.store import KvStore, exported_pool

LAYOUT = KvLayout(layers=3, kv_heads=2, block_size=4, head_dim=8, dtype="bfloat16")


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
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match=r"memory|argument|large"):
        SharedRegion.create(2**62, "test")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("blocks", [1, 7, 300])
def test_metadata_and_blocks_tile_the_region(dtype, blocks):
    layout = RegionLayout(replace(LAYOUT, dtype=dtype), blocks)
    assert layout.runs_per_block == 3 * 2 * 2
    assert layout.runs_per_block * layout.run_bytes == layout.layout.block_bytes
    assert layout.metadata_bytes >= 8 * (1 + layout.runs_per_block)
    assert layout.metadata_bytes % 64 == 0
    starts = [layout.metadata_offset(block) for block in range(blocks)]
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
    assert shared.wait_until_warm(20)
    pages = -(-shared.region.bytes // mmap.PAGESIZE)
    assert os.fstat(shared.region.descriptor).st_blocks * 512 == pages * mmap.PAGESIZE
    assert shared.view[7] == 7
    assert shared.view.astype(bool).sum() == 1
    shared.release_region()


def test_a_region_is_closed_while_it_is_warmed():
    shared = SharedRegion.create(8 << 30, "closed")
    watcher = os.dup(shared.region.descriptor)
    shared.warm()
    shared.release_region()
    assert "memfd:closed" not in Path("/proc/self/maps").read_text()
    assert os.fstat(watcher).st_blocks * 512 < 8 << 30
    os.close(watcher)
