"""The block store port, where the bytes of KV blocks lie off the device (host memory, a disk, the
shared pool, Redis), and what the tier engine over such stores is given and answers.

A store keeps bytes under names and checks what it gives back; which blocks it should hold is
decided elsewhere (`cluster.tiers`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.facts.kv import BlockName
from tandem.kv.threads import EngineCalls
from tandem.messages.node import BlocksFetched, BlocksKept, BlocksStaged

# The bytes of one block: uint8, contiguous, `BlockFormat.block_bytes` long.
Row = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a store holds of what it was given; `problem` is why not all, and empty when it did not
    want the others."""

    digests: tuple[bytes, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a store gave back: the first `blocks` of what was asked for are whole. `corrupt` failed
    their check, `missing` are not there; `problem` is what went wrong beside that."""

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


TierEvent = BlocksStaged | BlocksKept | BlocksFetched
TierCalls = EngineCalls[TierEvent]


@dataclass(frozen=True, slots=True)
class TierEngineConfig:
    """Full blocks wait in `staging_bytes` of memory until they are kept, and copies between
    tiers go through `transit_bytes`. A fetch looks for its end after every `fetch_chunk_bytes`;
    whatever nobody waits for pauses after `chunk_bytes` for what somebody waits for. `pinned`: the
    memory is to be read and written by a GPU. What does not end within `close_s` is left behind."""

    staging_bytes: int = 64 << 20
    transit_bytes: int = 16 << 20
    chunk_bytes: int = 4 << 20
    fetch_chunk_bytes: int = 16 << 20
    pinned: bool = False
    close_s: float = 5.0

    def blocks_of(self, size_bytes: int, block_bytes: int) -> int:
        return max(1, size_bytes // block_bytes)


class Answers:
    """Every expected answer is given once, and none after `finish_answers`."""

    def __init__(self, answered: Callable[[TierEvent], None]) -> None:
        self._answered = answered
        self._awaited = 0
        self._closing = False
        self._silent = False
        self._changed = Condition()

    @property
    def closing(self) -> bool:
        """Whoever is to answer should do so soon."""
        return self._closing

    def expect_answer(self) -> bool:
        """Whether something may still be asked for."""
        with self._changed:
            if self._closing:
                return False
            self._awaited += 1
            return True

    def give_answer(self, event: TierEvent) -> None:
        # Under the lock: when `finish_answers` returns nobody is being called.
        with self._changed:
            if self._silent:
                return
            self._answered(event)
            self._awaited -= 1
            self._changed.notify_all()

    def refuse_answers(self) -> None:
        """Expect nothing more."""
        with self._changed:
            self._closing = True

    def finish_answers(self, timeout_s: float) -> None:
        """Expect nothing more, and wait until all were given, or no longer."""
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: self._awaited == 0, timeout_s)
            self._silent = True
