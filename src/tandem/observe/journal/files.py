"""The files of journals: chunks of records, each with its length and a checksum, compressed.

A file is `GATEWAY.INCARNATION.NUMBER.journal`; the files of one start of a gateway are a run. A
file whose last chunk was cut off, because the process was killed or the machine lost its power,
ends before that chunk. Any other damage is a gap.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from tandem.facts.errors import InvalidConfiguration
from tandem.messages.cluster import PROTOCOL
from tandem.observe.journal.records import (
    FORMAT,
    Head,
    Lost,
    PeerMessage,
    Reconfigured,
    Record,
    Turn,
    decode_head,
    decode_record,
    encode,
)

SUFFIX = ".journal"
MAGIC = b"TANDEMJ1"
LARGEST_CHUNK_BYTES = 64 << 20
_CHUNK = struct.Struct("<II")
_RECORD = struct.Struct("<I")
# Of zlib's levels the quickest: it finds what repeats, and hashes do not get smaller by any.
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class FileLimits:
    """A file is ended when it has `file_bytes`; of one gateway, over all of its starts, the newest
    `keep` files stay."""

    file_bytes: int = 64 << 20
    keep: int = 16


class JournalFiles:
    """Writes the files of one run into `directory`, which is made where it is missing. Used from
    one thread. Methods raise `OSError`; nothing of a chunk that could not be written stays."""

    def __init__(self, directory: Path, head: Head, limits: FileLimits) -> None:
        self._directory = directory
        self._head = head
        self._limits = limits
        self._number = self._turns = 0
        self._size = 0
        self._file: int | None = None

    def append(
        self,
        records: Sequence[bytes],
        turns: int,
        members: tuple[PeerMessage, ...],
        configured: Reconfigured | None = None,
    ) -> None:
        """One chunk of these encoded records, `turns` of them turns. `members`, and the cluster as
        it was `configured` since the start, stand in the head of a new file if this begins one."""
        if self._file is None or self._size >= self._limits.file_bytes:
            if configured is not None:
                self._head = msgspec.structs.replace(
                    self._head,
                    cluster=configured.cluster,
                    files=configured.files,
                    plans=configured.plans,
                )
            self._begin_file(members)
        body = b"".join(part for each in records for part in (_RECORD.pack(len(each)), each))
        self._write(zlib.compress(body, _LEVEL))
        self._turns += turns

    def end_file(self) -> None:
        """Close what is open."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _begin_file(self, members: tuple[PeerMessage, ...]) -> None:
        self.end_file()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        head = self._head
        path = self._directory / file_name(head.gateway, head.incarnation, self._number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self._number += 1
        self._size = 0
        try:
            self._put(MAGIC)
            own = msgspec.structs.replace(
                head, number=self._number - 1, turns_before=self._turns, members=members
            )
            self._write(zlib.compress(encode(own), _LEVEL))
        except OSError:
            # A file without a head is none.
            self.end_file()
            path.unlink(missing_ok=True)
            self._number -= 1
            raise
        self._drop_oldest()

    def _write(self, data: bytes) -> None:
        self._put(_CHUNK.pack(len(data), zlib.crc32(data)) + data)

    def _put(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(data)

    def _drop_oldest(self) -> None:
        own = [each for each in _files_in(self._directory) if each.gateway == self._head.gateway]
        for each in sorted(own, key=lambda each: each.order)[: -self._limits.keep]:
            with suppress(FileNotFoundError):
                each.path.unlink()


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A file by its name."""

    path: Path
    gateway: str
    incarnation: str
    number: int

    @property
    def run(self) -> str:
        return f"{self.gateway}.{self.incarnation}"

    @property
    def order(self) -> tuple[int, str, int]:
        """Of starts by their second, which an incarnation begins with."""
        second = self.incarnation.partition("-")[0]
        is_hex = second and all(digit in "0123456789abcdef" for digit in second)
        return (int(second, 16) if is_hex else 0, self.incarnation, self.number)


def file_name(gateway: str, incarnation: str, number: int) -> str:
    """Of a file of this run."""
    return f"{gateway}.{incarnation}.{number:06d}{SUFFIX}"


def is_journal(path: Path) -> bool:
    """Whether this is a file of a journal, or a folder that holds one."""
    if path.is_dir():
        return any(_files_in(path))
    return path.name.endswith(SUFFIX) and _parsed(path) is not None


class JournalRun:
    """The files of one run, oldest first. Reading goes on past damage, which is told as `Lost`.
    `others` are the files of other runs in the folder, by run, the newest last. Raises
    `InvalidConfiguration` where the head cannot be read."""

    def __init__(
        self,
        files: Sequence[JournalFile],
        others: Mapping[str, Sequence[JournalFile]] = MappingProxyType({}),
    ) -> None:
        self.files = files
        self.name = files[0].run
        self.others = others
        self.head = _read_head(files[0])

    @property
    def whole(self) -> bool:
        """Whether it begins where the gateway began."""
        return self.files[0].number == 0

    def records(self) -> Iterator[Record]:
        """All that was recorded, in order."""
        turns, expected = self.head.turns_before, self.files[0].number
        for place, file in enumerate(self.files):
            head = _read_head(file)
            if file.number != expected or head.turns_before != turns:
                yield Lost(max(0, head.turns_before - turns))
            turns, expected = head.turns_before, file.number + 1
            last = place == len(self.files) - 1
            for record in _records_of(file.path, ends_anywhere=last):
                turns += isinstance(record, Turn)
                yield record


def open_journal(path: Path) -> JournalRun:
    """The run that a file belongs to, or the newest of a folder. Raises `InvalidConfiguration`."""
    if not path.exists():
        raise InvalidConfiguration(f"there is no journal {path}")
    if not is_journal(path):
        raise InvalidConfiguration(
            f"{path} is no journal; expected a file *{SUFFIX} or the folder of such files"
        )
    folder = path if path.is_dir() else path.parent
    found = sorted(_files_in(folder), key=lambda each: each.order)
    named = _parsed(path)
    run = found[-1].run if named is None else named.run
    runs: dict[str, list[JournalFile]] = {}
    for each in found:
        runs.setdefault(each.run, []).append(each)
    return JournalRun(runs.pop(run), runs)


def _files_in(folder: Path) -> Iterator[JournalFile]:
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if (file := _parsed(path)) is not None:
            yield file


def _parsed(path: Path) -> JournalFile | None:
    parts = path.name.removesuffix(SUFFIX).rsplit(".", 2)
    if path.suffix != SUFFIX or len(parts) != 3 or not parts[2].isdecimal():
        return None
    return JournalFile(path, parts[0], parts[1], int(parts[2]))


def _read_head(file: JournalFile) -> Head:
    """Raises `InvalidConfiguration`."""
    chunk = next(_chunks(file.path), None)
    if chunk is None:
        raise InvalidConfiguration(f"{file.path} is no journal, or nothing of it was written")
    try:
        head = decode_head(chunk)
    except msgspec.MsgspecError as error:
        raise InvalidConfiguration(f"{file.path} is of another version: {error}") from error
    if (head.format, head.protocol) != (FORMAT, PROTOCOL):
        raise InvalidConfiguration(
            f"{file.path} was written by Tandem {head.version} in format {head.format} with "
            f"protocol {head.protocol}; this version reads format {FORMAT} with protocol "
            f"{PROTOCOL}: use that one"
        )
    return head


def _records_of(path: Path, *, ends_anywhere: bool) -> Iterator[Record]:
    """Of one file. Where it may not end anywhere, being cut off is damage as well."""
    chunks = _chunks(path)
    next(chunks)
    try:
        for chunk in chunks:
            place = 0
            while place < len(chunk):
                (length,) = _RECORD.unpack_from(chunk, place)
                place += _RECORD.size + length
                yield decode_record(memoryview(chunk)[place - length : place])
    except _Cut:
        if not ends_anywhere:
            yield Lost(0)
    except (_Damaged, msgspec.MsgspecError, struct.error):
        yield Lost(0)


class _Cut(Exception):
    """The file ends within a chunk."""


class _Damaged(Exception):
    """The bytes are not those that were written."""


def _chunks(path: Path) -> Iterator[bytes]:
    """Raises `_Cut` or `_Damaged` after the last whole chunk, but gives nothing for a file without
    a whole first one."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return
        first = True
        while head := file.read(_CHUNK.size):
            size, checksum = _CHUNK.unpack(head) if len(head) == _CHUNK.size else (0, 0)
            data = file.read(size) if size <= LARGEST_CHUNK_BYTES else b""
            damaged = size > LARGEST_CHUNK_BYTES or zlib.crc32(data) != checksum
            cut = len(head) < _CHUNK.size or (len(data) < size <= LARGEST_CHUNK_BYTES)
            if first and (cut or damaged):
                return
            if cut:
                raise _Cut
            if damaged:
                raise _Damaged
            first = False
            yield _inflated(data)


def _inflated(data: bytes) -> bytes:
    """Raises `_Damaged`."""
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(data, LARGEST_CHUNK_BYTES)
    except zlib.error as error:
        raise _Damaged from error
    if inflater.unconsumed_tail:
        raise _Damaged
    return body
