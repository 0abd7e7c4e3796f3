"""Blocks are contiguous, layers are views, and every difference shows in the description."""

from dataclasses import replace

import pytest
import torch

from tandem.kv.layout import EncodedLayout, KvLayout
from tandem.kv.store import KvStore

LAYOUT = KvLayout(layers=3, kv_heads=2, block_size=4, head_dim=8, dtype="bfloat16")


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_bytes_and_shapes(dtype):
    layout = replace(LAYOUT, dtype=dtype)
    store = KvStore(layout, 5, torch.device("cpu"))
    assert tuple(store.pool_BL2KSD.shape) == layout.pool_shape(5) == (5, 3, 2, 2, 4, 8)
    assert layout.block_bytes == store.block(0).nbytes == 4 * layout.token_bytes
    assert store.bytes == store.pool_BL2KSD.nbytes == 5 * layout.block_bytes
    assert store.device == torch.device("cpu")


def test_a_block_is_one_span_and_a_layer_a_view():
    store = KvStore(LAYOUT, 5, torch.device("cpu"))
    store.pool_BL2KSD.zero_()
    assert store.block(3).is_contiguous()
    assert store.layer(1).shape == (5, 2, 2, 4, 8)
    store.layer(1)[3, 0, 1, 2] = 1.0
    assert store.block(3)[1, 0, 1, 2].eq(1.0).all()
    assert store.pool_BL2KSD.sum() == 8
    assert store.layer(1) is store.layer(1)


def test_descriptions_tell_layouts_apart():
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
