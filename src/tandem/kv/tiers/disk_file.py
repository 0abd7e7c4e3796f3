"""The file of a disk tier: [superblock][a slot for each block][a header for each slot].

It is as long as it may become from the begin on, but takes only the room of what was written. A
slot's header is written after its bytes and names their checksum: what was torn is found when it is
read. Where the headers lie is up to the number of slots: when that changes they are written to
their new place first, then the superblock names it.
"""

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv import BlockFormat
from tandem.kv.tiers.block_records import EMPTY, HASH_BYTES, HEADER_BYTES, BlockHeader, HeaderCodec

MAGIC: Final = b"tandemkv"
VERSION: Final = 1
SUPERBLOCK_BYTES: Final = 4096
SLOT_ALIGNMENT: Final = 512
# What one call to the system may be given.
MOST_BUFFERS: Final = 512
_SUPERBLOCK: Final = struct.Struct("<8sIIQQ")
_CHUNK_HEADERS: Final = 4096

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class DiskLayout:
    """Where things lie in a file of `slots` slots, in bytes from its begin."""

    block_bytes: int
    slots: int

    @property
    def stride(self) -> int:
        return -(-self.block_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT

    @property
    def headers_offset(self) -> int:
        return SUPERBLOCK_BYTES + self.slots * self.stride

    @property
    def bytes(self) -> int:
        return self.headers_offset + self.slots * HEADER_BYTES

    def slot_offset(self, slot: int) -> int:
        return SUPERBLOCK_BYTES + slot * self.stride

    def header_offset(self, slot: int) -> int:
        return self.headers_offset + slot * HEADER_BYTES


class DiskFile:
    """An open and locked file. Every method may raise `OSError`."""

    def __init__(self, descriptor: int, layout: DiskLayout, codec: HeaderCodec) -> None:
        self._descriptor = descriptor
        self.layout = layout
        self._codec = codec
        self._padding = memoryview(bytes(layout.stride - layout.block_bytes))

    def write_slots(self, slot: int, rows: Sequence[memoryview]) -> None:
        """Into neighbouring slots from `slot` on."""
        _write(self._descriptor, self._padded(rows), self.layout.slot_offset(slot))

    def write_headers(self, slot: int, headers: Sequence[BlockHeader | None]) -> None:
        """Of neighbouring slots from `slot` on; None for one that holds nothing."""
        raw = [
            self._codec.packed(header, place) if header else EMPTY
            for place, header in enumerate(headers, slot)
        ]
        _write(self._descriptor, [b"".join(raw)], self.layout.header_offset(slot))

    def read_slots(self, slot: int, rows: Sequence[memoryview]) -> None:
        """What lies in neighbouring slots from `slot` on; less where the file ends before."""
        offset = self.layout.slot_offset(slot)
        # Nothing is to be written to the padding, so what is read there goes to memory of its own.
        padding = memoryview(bytearray(len(self._padding)))
        buffers = [part for row in rows for part in (row, padding) if len(part)]
        for first in range(0, len(buffers), MOST_BUFFERS):
            some = buffers[first : first + MOST_BUFFERS]
            wanted = sum(len(part) for part in some)
            if _read(self._descriptor, some, offset) < wanted:
                return
            offset += wanted

    def headers(self) -> dict[int, BlockHeader]:
        """Of every slot that holds a block. Those that cannot be read count as empty."""
        found = {}
        for first in range(0, self.layout.slots, _CHUNK_HEADERS):
            count = min(_CHUNK_HEADERS, self.layout.slots - first)
            size, offset = count * HEADER_BYTES, self.layout.header_offset(first)
            with suppress(OSError):
                raw = os.pread(self._descriptor, size, offset)
                found.update(self._parsed(raw, first))
        return found

    def flush(self) -> None:
        """Wait until the disk itself has what was written."""
        os.fdatasync(self._descriptor)

    def close_file(self) -> None:
        os.close(self._descriptor)

    def _padded(self, rows: Sequence[memoryview]) -> list[Buffer]:
        if not self._padding:
            return list(rows)
        return [part for row in rows for part in (row, self._padding)]

    def _parsed(self, raw: bytes, first: int) -> dict[int, BlockHeader]:
        found = {}
        for index in range(len(raw) // HEADER_BYTES):
            one = raw[index * HEADER_BYTES : (index + 1) * HEADER_BYTES]
            if one != EMPTY and (header := self._codec.unpacked(one, first + index)):
                found[first + index] = header
        return found


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """`headers` are what it held, by slot. `notes` are lines for the log of whoever opened it."""

    file: DiskFile
    headers: dict[int, BlockHeader]
    notes: tuple[str, ...]


def open_file(path: Path, format: BlockFormat, slots: int) -> OpenedFile:
    """Make the file and its folder, or find again what it holds. Raises `InvalidConfiguration`
    where there can be no such file, where something else or somebody else's lies there, which is
    left as it is, or where another process has it."""
    try:
        descriptor = _own_file(path)
    except OSError as error:
        raise InvalidConfiguration(f"tiers.disk: {path}: {error.strerror}") from error
    try:
        _lock(descriptor, path)
        return _prepared(descriptor, path, format, slots)
    except OSError as error:
        os.close(descriptor)
        raise InvalidConfiguration(f"tiers.disk: {path}: {error.strerror}") from error
    except InvalidConfiguration:
        os.close(descriptor)
        raise


def _own_file(path: Path) -> int:
    """The file, open. Prompts can be read from KV: it is nobody else's business, and nobody else's
    file is taken for it. Raises `OSError` and `InvalidConfiguration`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if path.parent.is_symlink():
            _refuse(path.parent, "is a symbolic link", "name the folder that it leads to")
        raise error
    try:
        # A volume may belong to the system's administrator.
        if os.fstat(folder).st_uid not in (os.geteuid(), 0):
            _refuse(path.parent, "belongs to another user", "name a folder of your own")
        # A pipe must not make anybody wait, nor a device do anything.
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return os.open(path.name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        _check_own(path, found)
        descriptor = os.open(path.name, flags, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        # It may be another one by now.
        _check_own(path, os.fstat(descriptor))
        os.fchmod(descriptor, 0o600)
    except (OSError, InvalidConfiguration):
        os.close(descriptor)
        raise
    return descriptor


def _check_own(path: Path, found: os.stat_result) -> None:
    """Raises `InvalidConfiguration` unless it is a file of this user's that has no second name."""
    remedy = "move it away, or name another folder"
    if stat.S_ISLNK(found.st_mode):
        _refuse(path, "is a symbolic link", remedy)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        _refuse(path, "is no regular file", remedy)
    if found.st_uid != os.geteuid():
        _refuse(path, "belongs to another user", remedy)
    if found.st_nlink != 1:
        _refuse(path, f"has {found.st_nlink} names (hard links)", remedy)


def _refuse(path: Path, problem: str, remedy: str) -> NoReturn:
    raise InvalidConfiguration(f"tiers.disk: {path} {problem}, and is left as it is; {remedy}")


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise InvalidConfiguration(
            f"tiers.disk: {path} is in use by another process; give each its own folder"
        ) from error


def _prepared(descriptor: int, path: Path, format: BlockFormat, slots: int) -> OpenedFile:
    codec = HeaderCodec(format)
    layout = DiskLayout(format.block_bytes, slots)
    headers, notes = _found(descriptor, path, format)
    headers = {slot: header for slot, header in headers.items() if slot < slots}
    file = DiskFile(descriptor, layout, codec)
    superblock = _superblock_of(layout, codec)
    if _superblock(descriptor) != superblock:
        _settle(file, descriptor, headers, superblock)
    os.ftruncate(descriptor, layout.bytes)
    system = os.fstatvfs(descriptor)
    room_bytes = system.f_bavail * system.f_frsize + os.fstat(descriptor).st_blocks * 512
    if room_bytes < layout.bytes:
        notes.append(
            f"{path} may grow to {layout.bytes / 2**30:,.2f} GiB, but the disk has room for "
            f"{room_bytes / 2**30:,.2f} GiB: the tier will hold less than its capacity"
        )
    return OpenedFile(file, headers, tuple(notes))


def _found(
    descriptor: int, path: Path, format: BlockFormat
) -> tuple[dict[int, BlockHeader], list[str]]:
    """What the file holds by now, by slot. One with blocks of another format is emptied. Raises
    `InvalidConfiguration` where it is no file of blocks at all."""
    length = os.fstat(descriptor).st_size
    if length == 0:
        return {}, []
    raw, codec = _superblock(descriptor), HeaderCodec(format)
    # The begin of the word: a file that was cut short.
    if not raw.startswith(MAGIC) and not MAGIC.startswith(raw):
        _refuse(path, "holds something else than KV blocks", "move it away, or name another folder")
    layout = _layout_of(raw, format, codec)
    if layout is None:
        os.ftruncate(descriptor, 0)
        return {}, [
            f"{path} held blocks of other weights, another configuration or another layout, and "
            "was begun anew"
        ]
    return DiskFile(descriptor, layout, codec).headers(), []


def _settle(
    file: DiskFile, descriptor: int, headers: dict[int, BlockHeader], superblock: bytes
) -> None:
    """Write headers where they belong from now on, then the superblock that names the place."""
    slots = file.layout.slots
    if headers:
        for first in range(0, slots, _CHUNK_HEADERS):
            some = range(first, min(first + _CHUNK_HEADERS, slots))
            file.write_headers(first, [headers.get(slot) for slot in some])
        file.flush()
    _write(descriptor, [superblock], 0)
    file.flush()


def _superblock(descriptor: int) -> bytes:
    return os.pread(descriptor, _SUPERBLOCK.size + HASH_BYTES, 0)


def _superblock_of(layout: DiskLayout, codec: HeaderCodec) -> bytes:
    fields = _SUPERBLOCK.pack(MAGIC, VERSION, HEADER_BYTES, layout.block_bytes, layout.slots)
    return fields + codec.hash(fields)


def _layout_of(raw: bytes, format: BlockFormat, codec: HeaderCodec) -> DiskLayout | None:
    """Of a file with blocks of that format; None for another."""
    if len(raw) < _SUPERBLOCK.size:
        return None
    layout = DiskLayout(format.block_bytes, _SUPERBLOCK.unpack_from(raw)[4])
    return layout if raw == _superblock_of(layout, codec) else None


def _write(descriptor: int, buffers: Sequence[Buffer], offset: int) -> None:
    """All of them, one after the other. A full disk may take a part before it fails."""
    parts = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while parts:
        written = os.pwritev(descriptor, parts[:MOST_BUFFERS], offset)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        offset += written
        parts = _rest(parts, written)


def _read(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Fill them one after the other, up to the end of the file; how many bytes came."""
    parts, total = list(buffers), 0
    while parts:
        came = os.preadv(descriptor, parts, offset + total)
        if came == 0:
            break
        total += came
        parts = _rest(parts, came)
    return total


def _rest(parts: list[memoryview], done: int) -> list[memoryview]:
    """What is left of them after `done` bytes."""
    for index, part in enumerate(parts):
        if done < len(part):
            return [part[done:], *parts[index + 1 :]]
        done -= len(part)
    return []
