"""The block store port: where the bytes of KV blocks lie off the device, in host memory, on a disk,
in the shared pool or in Redis.

A store keeps bytes under names and checks what it gives back; which blocks it should hold is
decided elsewhere (`cluster.tiers`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.facts.kv_tiers import BlockName

# The bytes of one block: uint8, contiguous, `BlockFormat.block_bytes` long.
Row = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a store holds of what it was given; `problem` says why not all, and is empty when it
    did not want the others."""

    digests: tuple[bytes, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a store gave back: the first `blocks` of what was asked for are whole. `corrupt` failed
    their check, `missing` are not there; `problem` says what went wrong beside that."""

    blocks: int
    corrupt: tuple[bytes, ...] = ()
    missing: tuple[bytes, ...] = ()
    problem: str = ""


class DeviceBlocks(Protocol):
    """How tiers reach the blocks of a device. `rows[block]` are the blocks themselves where a store
    may write to them, else None. Methods wait for the bytes, with Python's lock free, and may be
    called from several threads."""

    @property
    def block_bytes(self) -> int: ...

    @property
    def rows(self) -> NDArray[np.uint8] | None: ...

    def read_blocks(self, blocks: Sequence[int], rows: Sequence[Row]) -> None:
        """Fill `rows[i]` with `blocks[i]`, which may be overwritten meanwhile."""
        ...

    def write_blocks(self, blocks: Sequence[int], rows: Sequence[Row]) -> None:
        """Fill `blocks[i]` with `rows[i]`; they are invalidated."""
        ...

    def invalidate_blocks(self, blocks: Sequence[int]) -> None:
        """From now on nobody takes what these hold for what was announced of them."""
        ...


class BlockStore(Protocol):
    """Used from one thread. Calls wait for the bytes, in bounded time; trouble is an answer, never
    an exception. Room for what `put_blocks` adds has been made by `forget_blocks`
    before."""

    def put_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Kept:
        """Keep `rows[i]` under `names[i]`."""
        ...

    def get_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Found:
        """Fill `rows[i]` with the block `names[i]`, in order, until one is not to be had."""
        ...

    def forget_blocks(self, digests: Sequence[bytes]) -> None:
        """These are not wanted any more. Unknown ones are ignored."""
        ...

    def stored_blocks(self) -> tuple[BlockName, ...]:
        """What it holds from before its start, the one stored longest ago first."""
        ...

    def close_store(self) -> None:
        """Nothing is asked of it any more."""
        ...
