"""The KV memory of a worker: one pool tensor on one device, in memory of its own or in
memory that others may reach.

Knows nothing of owners or hashes: which block holds what is the pool machine's business.
Axes: B blocks, L layers, K kv heads, S slots a block, D head dim (of codes with their scale).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.kernels.native import advise_huge_pages
from tandem.kv.layout import KvDtype, KvLayout, RegionLayout
from tandem.kv.transfer.export import version_words

TORCH_DTYPES: dict[KvDtype, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}


# Tokens in the pool: their blocks, and the slots in these.
KvPlaces = tuple[NDArray[np.int32], NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class ExportedPool:
    """The pool part of a region that others read, and of each block's metadata the word with the
    version that may be read there: `versions[block]`. `used_to` is told of each block that is
    written."""

    memory: Tensor
    versions: NDArray[np.uint64]
    used_to: Callable[[int], None]


def _unwatched(offset: int) -> None:
    """Nobody asks how far a region is used."""


def exported_pool(
    region: NDArray[np.uint8], layout: RegionLayout, used_to: Callable[[int], None] = _unwatched
) -> ExportedPool:
    """`region` are all bytes of memory that is laid out so from its begin on; `used_to` is told the
    offset up to which it is used."""
    pool = torch.from_numpy(region[layout.pool_offset : layout.bytes])
    return ExportedPool(
        pool,
        version_words(region, layout),
        lambda block: used_to(layout.block_offset(block) + layout.layout.block_bytes),
    )


class KvStore:
    """Owns the pool for its lifetime; `layer` hands out views of it.

    The memory is not cleared: a slot is written before attention reads it. `exported` is the pool
    part of a region, uint8 on the device, of exactly `blocks` blocks; without it the store makes
    its own.
    """

    def __init__(
        self,
        layout: KvLayout,
        blocks: int,
        device: torch.device,
        exported: ExportedPool | None = None,
    ) -> None:
        assert blocks > 0
        self.layout = layout
        self.blocks = blocks
        shape, dtype = layout.pool_shape(blocks), TORCH_DTYPES[layout.dtype]
        self._exported = exported
        if exported is None:
            self.pool_BL2KSD = torch.empty(shape, dtype=dtype, device=device)
        else:
            memory = exported.memory
            assert memory.dtype is torch.uint8
            assert memory.device.type == device.type
            assert memory.numel() == blocks * layout.block_bytes
            self.pool_BL2KSD = memory.view(dtype).view(shape)
        if device.type == "cpu":
            advise_huge_pages(self.pool_BL2KSD.data_ptr(), self.pool_BL2KSD.nbytes)
        # Made once: a view costs more than a list look-up, and every layer of every step asks.
        self._layers = list(self.pool_BL2KSD.unbind(dim=1))

    @property
    def device(self) -> torch.device:
        return self.pool_BL2KSD.device

    @property
    def bytes(self) -> int:
        return self.blocks * self.layout.block_bytes

    def layer(self, index: int) -> Tensor:
        """kv_B2KSD of one layer: a strided view of the pool, to be read and written."""
        return self._layers[index]

    def move(self, sources: KvPlaces, targets: KvPlaces) -> None:
        """Copy KV of tokens to other slots, of all layers: as if all were read before any is
        written."""
        if not len(sources[0]):
            return
        pool = self.pool_BL2KSD
        (source_M, from_M), (target_M, to_M) = (
            [torch.from_numpy(each.astype(np.int64)).to(pool.device) for each in places]
            for places in (sources, targets)
        )
        pool[target_M, :, :, :, to_M] = pool[source_M, :, :, :, from_M]

    def invalidate_blocks(self, blocks: NDArray[np.int32]) -> None:
        """These are about to be written anew: from now on nobody takes what they hold for what was
        announced of them."""
        if self._exported and len(blocks):
            self._exported.versions[blocks] = 0
            self._exported.used_to(int(blocks.max()))
