"""Blocks of a device go to host memory and come back, on whatever is here; with CUDA the same case
runs there too, through memory that the GPU reads and writes by itself."""

import time
from queue import SimpleQueue

import pytest
import torch

from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat
from tandem.kernels.transfer import choose_transfer
from tandem.kv.layout import KvLayout
from tandem.kv.store import KvStore
from tandem.kv.tiers.contract import TierCalls, TierEngineConfig, TierEvent
from tandem.kv.tiers.device import device_blocks
from tandem.kv.tiers.engine import TierEngine
from tandem.kv.tiers.host import HostStore
from tandem.messages.node import BlocksKept, BlocksStaged
from tests.kv.ending import closing
from tests.kv.tier_blocks import PATIENCE_S, ROOT, digests, names

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
LAYOUT = KvLayout(layers=3, kv_heads=2, block_size=16, head_dim=64, dtype="bfloat16")
BLOCKS = 20


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_of_a_device_go_out_and_come_back(device):
    store = KvStore(LAYOUT, 2 * BLOCKS, torch.device(device))
    noise = torch.randn(store.pool_BL2KSD.shape, generator=torch.Generator().manual_seed(1))
    store.pool_BL2KSD.copy_(noise)
    expected = store.pool_BL2KSD[:BLOCKS].clone()
    transfer, told = choose_transfer(), SimpleQueue[TierEvent]()
    host = HostStore(BlockFormat(ROOT, LAYOUT.block_bytes), BLOCKS, transfer)
    config = TierEngineConfig(
        fetch_chunk_bytes=7 * LAYOUT.block_bytes, pinned=store.device.type != "cpu"
    )
    calls = TierCalls(told.put, lambda: None, time.monotonic_ns)
    with closing(TierEngine(device_blocks(store, transfer), {Tier.HOST: host}, config, calls)) as e:
        named, every = names(BLOCKS), range(BLOCKS)
        e.stage_blocks(1, every)
        assert told.get(timeout=PATIENCE_S) == BlocksStaged(1, staged=True)
        store.pool_BL2KSD.zero_()
        e.keep_staged(1, Tier.HOST, every, named)
        assert told.get(timeout=PATIENCE_S) == BlocksKept(1, Tier.HOST, digests(named))
        # In another order, so that no block comes back by staying where it was.
        targets = [2 * BLOCKS - 1 - index for index in every]
        e.fetch_blocks(2, [Tier.HOST] * BLOCKS, named, targets)
        assert told.get(timeout=PATIENCE_S).blocks == BLOCKS
    assert torch.equal(store.pool_BL2KSD[targets], expected)
    assert not store.pool_BL2KSD[:BLOCKS].any()
