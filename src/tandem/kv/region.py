"""Regions: memory that connectors reach, and that other processes may map; anonymous, and gone with
the last process that maps it."""

import errno
import fcntl
import logging
import mmap
import os
from dataclasses import dataclass
from threading import Event, get_native_id
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tandem.kernels.native import populate
from tandem.kv.threads import SupervisedThread, no_harm

logger = logging.getLogger(__name__)

# Whoever maps the memory can rely on its size: a shrunken file would kill its readers.
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# F_SEAL_FUTURE_WRITE of linux/fcntl.h (since 5.1): what is mapped stays writable, and nobody maps
# it writable or writes to it any more, whoever he is and however he came by the file.
SEAL_FUTURE_WRITE: Final = 0x0010
# Of one call to the system, about a millisecond's worth: whoever faults meanwhile waits no longer.
WARM_BYTES: Final = 1 << 18
# Whatever else there is to compute goes first.
LOWEST_PRIORITY: Final = 19
CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Region:
    """`bytes` of memory at `address`. `descriptor` is the file descriptor behind it that another
    process of this user may map to read, or -1. `device` is "cpu" or as torch names a GPU. Whoever
    made it keeps it alive."""

    address: int
    bytes: int
    descriptor: int = -1
    device: str = "cpu"


class SharedRegion:
    """Memory of this process, all zeros at first, behind a file without a name: nothing is left
    to clean up, whatever way the process ends. Others read it; to write to it is this process's
    alone.

    `view` is all of it, as bytes; every array or tensor made from it keeps the memory mapped.
    """

    def __init__(self, region: Region, view: NDArray[np.uint8]) -> None:
        self.region = region
        self.view = view
        self._warming: Warming | None = None

    @classmethod
    def create(cls, bytes: int, name: str) -> "SharedRegion":
        """`name` is what `/proc` shows. Raises `OSError` where the system gives no memory."""
        assert bytes > 0
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, bytes)
            view = _mapped(descriptor, bytes, mmap.PROT_READ | mmap.PROT_WRITE)
            # After the one mapping that may write.
            _seal(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return cls(Region(view.ctypes.data, bytes, descriptor), view)

    def warm(self, ahead_bytes: int | None = None) -> None:
        """Have pages made, from the begin on, in the background: a page made at the first touch
        costs the toucher ten times a copy. Of all of it, or only so far ahead of what is used
        (`used_to`): memory that nobody needs stays the system's. At most once."""
        assert self._warming is None
        self._warming = Warming(self.view.ctypes.data, len(self.view), ahead_bytes)

    def used_to(self, offset: int) -> None:
        """All before this offset is in use, or soon will be."""
        if self._warming is not None:
            self._warming.used_to(offset)

    def release_region(self) -> None:
        """No new peer can map it; the memory goes with its last view, here and at peers."""
        if self._warming:
            self._warming.stop_warming()
        if self.region.descriptor >= 0:
            os.close(self.region.descriptor)
        self.region = Region(0, 0)
        self.view = np.empty(0, dtype=np.uint8)


def mapped(descriptor: int, bytes: int) -> NDArray[np.uint8]:
    """The memory behind a descriptor, shared with its owner, for as long as a view lives: to be
    read, and nothing else."""
    return _mapped(descriptor, bytes, mmap.PROT_READ)


def _mapped(descriptor: int, bytes: int, protection: int) -> NDArray[np.uint8]:
    memory = mmap.mmap(descriptor, bytes, mmap.MAP_SHARED, protection)
    return np.frombuffer(memory, dtype=np.uint8)


def _seal(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS | SEAL_FUTURE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        logger.warning(
            "this kernel cannot seal memory against writing (Linux 5.1 can): other processes of "
            "this user could write to KV that they should only read"
        )
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)


class Warming:
    """Has pages made for memory that begins at a page, at the lowest priority, `ahead_bytes`
    further than it is used, until all is done or `stop_warming`; the memory must stay mapped until
    then."""

    def __init__(self, address: int, size_bytes: int, ahead_bytes: int | None = None) -> None:
        """Without `ahead_bytes` of all of it, used or not."""
        self._address, self._size_bytes = address, size_bytes
        self._ahead_bytes = size_bytes if ahead_bytes is None else ahead_bytes
        self._used_bytes = 0
        self._wanted = Event()
        self._stopping = Event()
        # Whoever touches a page first has it made, if nobody did before.
        self._thread = SupervisedThread("kv warm", self._warm, no_harm)
        self._thread.start()

    def stop_warming(self) -> None:
        """Returns when it has ended."""
        self._stopping.set()
        self._wanted.set()
        self._thread.join(CLOSE_S)

    def used_to(self, offset: int) -> None:
        """Of several threads the last one may be a little behind: the next call mends it."""
        if offset > self._used_bytes:
            self._used_bytes = offset
            self._wanted.set()

    def _warm(self) -> None:
        # On Linux a thread has a priority of its own.
        os.setpriority(os.PRIO_PROCESS, get_native_id(), LOWEST_PRIORITY)
        for offset in range(0, self._size_bytes, WARM_BYTES):
            while offset >= self._used_bytes + self._ahead_bytes and not self._stopping.is_set():
                self._wanted.wait()
                self._wanted.clear()
            size = min(WARM_BYTES, self._size_bytes - offset)
            if self._stopping.is_set() or not populate(self._address + offset, size):
                return
