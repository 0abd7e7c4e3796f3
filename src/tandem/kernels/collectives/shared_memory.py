"""Exchanges between processes of one machine, through memory that all of them map.

Every rank writes to slots of its own and then posts a number; who has seen the posts of all reads
their slots. The slots are two deep: who posts a step has read what the step before gave it, so
that those of the step before that may be written again.
"""

import ctypes
import fcntl
import math
import mmap
import os
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.kernels.native import Integer, IntegerArray, NativeLibrary, Pointer

# Larger tensors cross in pieces of this.
SLOT_BYTES = 1 << 20
# A cache line for each counter: whoever waits for one rank does not slow the others' posts.
POST_BYTES = 64
DEPTH = 2
# While waiting, so often it is asked whether the rank that is waited for still lives.
LOOK_S = 0.1


def memory_bytes(ranks: int) -> int:
    return ranks * (POST_BYTES + DEPTH * SLOT_BYTES)


class SharedMemory:
    """Anonymous memory of one group, mapped by each of its ranks; gone with the last of them.

    Each rank holds a lock on the byte of its number. The kernel releases it when the process ends,
    however it ends, so that others can tell. Nothing else may open the same memory in a process
    that holds such a lock: closing it again would release the lock.
    """

    def __init__(self, descriptor: int, rank: int, ranks: int) -> None:
        """Takes over the descriptor. Raises `OSError`."""
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        self._memory = mmap.mmap(descriptor, memory_bytes(ranks))
        self.bytes = torch.frombuffer(self._memory, dtype=torch.uint8)

    def is_alive(self, rank: int) -> bool:
        """Whether the process of another rank still holds its lock."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, rank)
        except BlockingIOError:
            return True
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, rank)
        return False


def new_memory(ranks: int) -> int:
    """The descriptor of fresh memory for a group."""
    descriptor = os.memfd_create("tandem-ranks", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, memory_bytes(ranks))
    return descriptor


def memory_of(process: int, descriptor: int) -> int:
    """A descriptor of the memory that another process of this user and machine has made. Raises
    `OSError` where that is not allowed."""
    return os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


@dataclass(frozen=True, slots=True)
class Spot:
    """One rank of a group, and how long it waits for the others."""

    rank: int
    ranks: int
    timeout_s: float


class MemoryExchange:
    """An `Exchange` of CPU tensors. Raises `RuntimeError` when a rank is gone or late."""

    def __init__(self, memory: SharedMemory, spot: Spot, library: NativeLibrary) -> None:
        self._memory = memory
        self._spot = spot
        self._post = library.function("tandem_post", Pointer, Integer)
        self._await_posts = library.function(
            "tandem_await_posts", Pointer, Integer, Integer, Integer, Integer, IntegerArray
        )
        self._posts = memory.bytes.data_ptr()
        slots = memory.bytes[spot.ranks * POST_BYTES :]
        # Made once: each exchange asks for its turn of them.
        self._slots = slots.view(DEPTH, spot.ranks, SLOT_BYTES).unbind(0)
        self._late = (Integer * 1)()
        self._turn = 0

    def gather(self, own: Tensor) -> Tensor:
        taken = own.new_empty((self._spot.ranks, *own.shape))
        given_B, taken_RB = _bytes_of(own, 1), _bytes_of(taken, self._spot.ranks)
        for start in range(0, own.nbytes, SLOT_BYTES):
            stop = min(start + SLOT_BYTES, own.nbytes)
            slots_RB = self._next_slots()
            slots_RB[self._spot.rank, : stop - start].copy_(given_B[0, start:stop])
            self._meet()
            taken_RB[:, start:stop].copy_(slots_RB[:, : stop - start])
        return taken

    def scatter(self, parts: Tensor) -> Tensor:
        ranks, rank = self._spot.ranks, self._spot.rank
        taken = torch.empty_like(parts)
        given_RB, taken_RB = _bytes_of(parts, ranks), _bytes_of(taken, ranks)
        part_bytes = SLOT_BYTES // ranks
        for start in range(0, given_RB.shape[1], part_bytes):
            stop = min(start + part_bytes, given_RB.shape[1])
            slots_RPB = self._next_slots()[:, : part_bytes * ranks].view(ranks, ranks, part_bytes)
            slots_RPB[rank, :, : stop - start].copy_(given_RB[:, start:stop])
            self._meet()
            taken_RB[:, start:stop].copy_(slots_RPB[:, rank, : stop - start])
        return taken

    def _next_slots(self) -> Tensor:
        self._turn += 1
        return self._slots[self._turn % DEPTH]

    def _meet(self) -> None:
        """Tell the others that the own slot is written, and wait until theirs are."""
        spot = self._spot
        self._post(self._posts + spot.rank * POST_BYTES, self._turn)
        look_s = min(LOOK_S, spot.timeout_s)
        for _ in range(math.ceil(spot.timeout_s / look_s)):
            self._await_posts(
                self._posts,
                spot.ranks,
                POST_BYTES // ctypes.sizeof(Integer),
                self._turn,
                int(look_s * 1e9),
                self._late,
            )
            late = self._late[0]
            if late < 0:
                return
            if not self._memory.is_alive(late):
                raise RuntimeError(f"rank {late} of {spot.ranks} has ended")
        raise RuntimeError(f"rank {late} of {spot.ranks} did not answer in {spot.timeout_s:g} s")


def _bytes_of(tensor: Tensor, rows: int) -> Tensor:
    """A view of a contiguous tensor as rows of bytes."""
    return tensor.view(-1).view(torch.uint8).view(rows, -1)
