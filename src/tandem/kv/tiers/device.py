"""The device end of the tiers: copies blocks off the device and back, CPU and GPU alike."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.kernels.transfer import Transfer
from tandem.kv.store import KvStore
from tandem.kv.tiers.contract import DeviceBlocks, Row
from tandem.kv.tiers.rows import RowCopies, Rows, allocated_rows, row_stride, rows_of


class CpuBlocks:
    """Blocks in the memory of the host."""

    def __init__(self, store: KvStore, transfer: Transfer) -> None:
        assert store.device.type == "cpu"
        self._store = store
        self._rows = _as_bytes(store).numpy()
        self._copies = RowCopies(transfer, store.layout.block_bytes)

    @property
    def block_bytes(self) -> int:
        return self._store.layout.block_bytes

    @property
    def rows(self) -> NDArray[np.uint8]:
        return self._rows

    def read_blocks(self, blocks: Sequence[int], rows: Sequence[Row]) -> None:
        self._copies.copy([self._rows[block] for block in blocks], rows)

    def write_blocks(self, blocks: Sequence[int], rows: Sequence[Row]) -> None:
        self._copies.copy(rows, [self._rows[block] for block in blocks])

    def invalidate_blocks(self, blocks: Sequence[int]) -> None:
        self._store.invalidate_blocks(np.array(blocks, dtype=np.int32))


class GpuBlocks:
    """Blocks of a GPU. Copies go by streams of their own, beside the steps: whoever asks for one
    knows that the step which wrote the blocks is over, and begins the next step after the
    answer."""

    def __init__(self, store: KvStore) -> None:
        assert store.device.type == "cuda"
        self._store = store
        self._blocks = _as_bytes(store)
        self._out = torch.cuda.Stream(store.device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(store.device)  # type: ignore[no-untyped-call]

    @property
    def block_bytes(self) -> int:
        return self._store.layout.block_bytes

    @property
    def rows(self) -> None:
        return None

    def read_blocks(self, blocks: Sequence[int], rows: Sequence[Row]) -> None:
        with torch.cuda.stream(self._out):
            for block, row in zip(blocks, rows, strict=True):
                torch.from_numpy(row).copy_(self._blocks[block], non_blocking=True)
        self._out.synchronize()

    def write_blocks(self, blocks: Sequence[int], rows: Sequence[Row]) -> None:
        with torch.cuda.stream(self._in):
            for block, row in zip(blocks, rows, strict=True):
                self._blocks[block].copy_(torch.from_numpy(row), non_blocking=True)
        self._in.synchronize()

    def invalidate_blocks(self, blocks: Sequence[int]) -> None:
        self._store.invalidate_blocks(np.array(blocks, dtype=np.int32))


def device_blocks(store: KvStore, transfer: Transfer) -> DeviceBlocks:
    return CpuBlocks(store, transfer) if store.device.type == "cpu" else GpuBlocks(store)


def bounce_rows(count: int, row_bytes: int, *, pinned: bool) -> Rows:
    """Memory beside the device. `pinned` asks for such that a GPU reads and writes by itself;
    without any left it is plain. Raises as `allocated_rows`."""
    if pinned:
        size_bytes = count * row_stride(row_bytes)
        # Not where there is no GPU, or the system locks no more memory.
        with suppress(RuntimeError):
            memory = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
            return rows_of(memory.numpy(), row_bytes)
    return allocated_rows(count, row_bytes)


def _as_bytes(store: KvStore) -> torch.Tensor:
    """uint8[blocks, block_bytes], the same memory."""
    return store.pool_BL2KSD.view(torch.uint8).view(store.blocks, -1)
