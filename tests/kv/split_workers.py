"""Workers as tests need them: KV split over ranks in any way, with a slow, obvious way to say what
each rank's memory should hold."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from tandem.facts.kv import EncodedCopies, KvExport, KvGeometry, KvShard, MoveKv
from tandem.kernels.kv_rows import LARGEST_CODE, encode_rows
from tandem.kernels.transfer import Transfer
from tandem.kv.layout import RegionLayout, exported_bytes, shard_layout
from tandem.kv.region import Region, SharedRegion
from tandem.kv.store import TORCH_DTYPES
from tandem.kv.transfer.export import BlockMetadata, EncodedCopyWriter

LAYERS, KV_HEADS, HEAD_DIM = 4, 4, 3


@dataclass(frozen=True)
class Split:
    """How a worker holds a model's KV."""

    tensor_ranks: int = 1
    stages: int = 1
    block_size: int = 4
    dtype: str = "float32"
    kv_heads: int = KV_HEADS
    blocks: int = 12
    copies: EncodedCopies | None = None


class SplitWorker:
    """The memory of all ranks of one worker, filled with chance; other processes may map it."""

    def __init__(self, split: Split, seed: int) -> None:
        self.split = split
        chance = np.random.default_rng(seed)
        sizes = [exported_bytes(self.export, shard) for shard in self.export.shards]
        self.shared = [SharedRegion.create(size, "test") for size in sizes]
        self.memories = [shared.view for shared in self.shared]
        for memory in self.memories:
            memory[:] = chance.integers(0, 255, len(memory), dtype=np.uint8)
        for rank, pool in enumerate(self.pools):
            pool.copy_(torch.from_numpy(chance.standard_normal(pool.shape)))
            self.memories[rank][: self.layouts[rank].pool_offset] = 0
            self.memories[rank][self.layouts[rank].bytes :] = 0

    @cached_property
    def geometry(self) -> KvGeometry:
        split = self.split
        return KvGeometry(LAYERS, split.kv_heads, HEAD_DIM, split.block_size, split.dtype)

    @cached_property
    def export(self) -> KvExport:
        split, shards = self.split, []
        each_stage, each_rank = LAYERS // split.stages, max(split.kv_heads // split.tensor_ranks, 1)
        for stage in range(split.stages):
            for place in range(split.tensor_ranks):
                head = place * split.kv_heads // split.tensor_ranks
                shards.append(
                    KvShard(len(shards), stage * each_stage, each_stage, head, each_rank, ())
                )
        shared = (split.blocks, tuple(shards), split.copies)
        return KvExport("m", "1", self.geometry, *shared, identity="a model")

    @cached_property
    def layouts(self) -> list[RegionLayout]:
        return [
            RegionLayout(shard_layout(self.geometry, shard), self.split.blocks)
            for shard in self.export.shards
        ]

    def __del__(self) -> None:
        for shared in self.shared:
            shared.release_region()

    @property
    def regions(self) -> list[Region]:
        return [shared.region for shared in self.shared]

    @cached_property
    def pools(self) -> list[torch.Tensor]:
        """pool_BL2KSD of each rank, over its memory."""
        found = []
        for memory, layout in zip(self.memories, self.layouts, strict=True):
            raw = torch.from_numpy(memory[layout.pool_offset : layout.bytes])
            values = raw.view(TORCH_DTYPES[self.split.dtype])
            found.append(values.view(layout.layout.pool_shape(self.split.blocks)))
        return found

    def export_blocks(self, transfer: Transfer, blocks: list[int], versions: list[int]) -> None:
        for shard, memory, layout in zip(
            self.export.shards, self.memories, self.layouts, strict=True
        ):
            if self.split.copies:
                copies = EncodedCopyWriter(memory, self.export, shard, transfer)
                copies.write_copies(blocks, versions, checksums=True)
            BlockMetadata(memory, layout, transfer).write_metadata(blocks, versions)

    def write(self, tokens_TL2KD: torch.Tensor, blocks: list[int]) -> None:
        """Fill blocks (of all ranks) with the values of tokens 0, 1, ... of the whole model."""
        size = self.split.block_size
        for shard, pool in zip(self.export.shards, self.pools, strict=True):
            layers = slice(shard.first_layer, shard.first_layer + shard.layers)
            heads = slice(shard.first_head, shard.first_head + shard.heads)
            for token, values in enumerate(tokens_TL2KD):
                if token // size < len(blocks):
                    rows = encode_rows(values[layers, :, heads], pool.dtype)
                    pool[blocks[token // size], :, :, :, token % size] = rows

    def expected(self, order: MoveKv, tokens_TL2KD: torch.Tensor) -> list[torch.Tensor]:
        """What the pools should hold after the order, which has not been carried out yet."""
        after = [pool.clone() for pool in self.pools]
        size = self.split.block_size
        for shard, pool in zip(self.export.shards, after, strict=True):
            layers = slice(shard.first_layer, shard.first_layer + shard.layers)
            heads = slice(shard.first_head, shard.first_head + shard.heads)
            for token in range(order.first_token, order.end_token):
                block = order.target_blocks[token // size - order.first_token // size]
                rows = encode_rows(tokens_TL2KD[token, layers, :, heads], pool.dtype)
                pool[block, :, :, :, token % size] = rows
        return after


def model_kv(tokens: int, split: Split, seed: int) -> torch.Tensor:
    """tokens_TL2KD as a worker of that split stores them; as codes, the values of these, which give
    the same codes again."""
    chance, shape = np.random.default_rng(seed), (tokens, LAYERS, 2, split.kv_heads, HEAD_DIM)
    if split.dtype == "int8":
        codes = chance.integers(-LARGEST_CODE, LARGEST_CODE + 1, shape)
        codes[..., 0] = LARGEST_CODE
        scales = 2.0 ** chance.integers(-9, 3, (*shape[:-1], 1))
        return torch.from_numpy((codes * scales).astype(np.float32))
    return torch.from_numpy(chance.standard_normal(shape)).to(TORCH_DTYPES[split.dtype])


def order_for(source: Split, target: Split, first_token: int, end_token: int) -> MoveKv:
    """Blocks in an order of their own at each end, some of them neighbours."""
    counts = [
        -(-end_token // split.block_size) - first_token // split.block_size
        for split in (source, target)
    ]
    return MoveKv(
        transfer_id=1,
        request_id="r",
        source="source",
        incarnation="1",
        first_token=first_token,
        end_token=end_token,
        source_blocks=tuple(spread(source.blocks, counts[0])),
        source_versions=tuple(range(7, 7 + counts[0])),
        target_blocks=tuple(spread(target.blocks, counts[1])),
    )


def spread(blocks: int, count: int) -> list[int]:
    """Different blocks: a few neighbours, then every fifth."""
    assert count <= blocks
    chain = [2, 3, 4, *((7 + 5 * step) % blocks for step in range(blocks))]
    return list(dict.fromkeys(block for block in (*chain, *range(blocks)) if block < blocks))[
        :count
    ]
