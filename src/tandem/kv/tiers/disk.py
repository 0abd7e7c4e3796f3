"""The disk tier: blocks in a file, found again after a restart, a crash or a loss of power."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tandem.facts.kv import BlockFormat, BlockName
from tandem.kernels.transfer import Checksums, Transfer
from tandem.kv.tiers.block_records import BlockHeader, HeaderCodec
from tandem.kv.tiers.contract import Found, Kept, Row
from tandem.kv.tiers.disk_file import DiskFile, open_file
from tandem.kv.tiers.rows import RowCopies, leading_slots


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """The file `path` has room for `capacity_blocks` and `spare_blocks` more: a block that was
    evicted keeps its place until it is forgotten. A write does not wait for the disk: a loss of
    power may corrupt what was written shortly before, which is then found by its checksum."""

    path: Path
    capacity_blocks: int
    spare_blocks: int = 0


class DiskStore:
    """A write that fails (a full disk) refuses these blocks alone; what lies there can be read.
    A disk that does not answer at all holds up whoever waits for it."""

    def __init__(self, config: DiskConfig, format: BlockFormat, transfer: Transfer) -> None:
        """Raises `InvalidConfiguration` where there can be no such file, or another process has
        it. `notes` are lines for the log."""
        slots = config.capacity_blocks + config.spare_blocks
        assert slots > 0
        opened = open_file(config.path, format, slots)
        self.notes = opened.notes
        self._config = config
        self._file: DiskFile = opened.file
        self._codec = HeaderCodec(format)
        self._copies = RowCopies(transfer, format.block_bytes)
        self._slots: dict[bytes, int] = {}
        self._checksums = np.zeros(slots, dtype=np.uint64)
        self._sequence = 0
        self._listing = self._take(opened.headers)
        taken = set(self._slots.values())
        self._free = [slot for slot in range(slots - 1, -1, -1) if slot not in taken]

    def put_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Kept:
        new = {}
        problem = ""
        for name, row in zip(names, rows, strict=True):
            refused = self._codec.problem(name)
            problem = problem or refused
            if not refused and name.digest not in self._slots:
                new[name.digest] = (name, row)
        if len(new) > len(self._free):
            problem = problem or "no room is left in the file"
        chosen = list(new.values())[: len(self._free)]
        slots = sorted(self._free.pop() for _ in chosen)
        checksums = self._copies.checksums([row for _, row in chosen])
        done = 0
        try:
            for begin, end in _runs(slots):
                self._write(slots[begin:end], chosen[begin:end], checksums[begin:end])
                done = end
        except OSError as error:
            problem = self._trouble(error)
        self._free += reversed(slots[done:])
        kept = tuple(name.digest for name in names if name.digest in self._slots)
        return Kept(kept, problem)

    def get_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Found:
        slots, missing = leading_slots(names, self._slots)
        readable, problem = self._read_slots(slots, rows)
        checksums = self._copies.checksums(rows[:readable])
        unlike = np.flatnonzero(checksums != self._checksums[slots[:readable]]).tolist()
        # What cannot be read will not be better the next time.
        unlike += [readable] if readable < len(slots) else []
        if not unlike:
            return Found(len(slots), missing=missing)
        corrupt = tuple(dict.fromkeys(names[index].digest for index in unlike))
        self.forget_blocks(corrupt)
        return Found(unlike[0], corrupt=corrupt, problem=problem)

    def forget_blocks(self, digests: Sequence[bytes]) -> None:
        slots = [slot for digest in digests if (slot := self._slots.pop(digest, None)) is not None]
        self._free += slots
        self._clear(sorted(slots))

    def stored_blocks(self) -> tuple[BlockName, ...]:
        return self._listing

    def close_store(self) -> None:
        self._file.close_file()

    def _take(self, headers: dict[int, BlockHeader]) -> tuple[BlockName, ...]:
        """Know again what the file held: of each block the newest, and no more than may be."""
        newest: dict[bytes, tuple[int, BlockHeader]] = {}
        for slot, header in sorted(headers.items(), key=lambda item: item[1].sequence):
            newest.pop(header.name.digest, None)
            newest[header.name.digest] = slot, header
        self._sequence = max((header.sequence for header in headers.values()), default=0)
        held = list(newest.values())[-self._config.capacity_blocks :]
        for slot, header in held:
            self._slots[header.name.digest] = slot
            self._checksums[slot] = header.checksum
        self._clear(sorted(set(headers) - {slot for slot, _ in held}))
        return tuple(header.name for _, header in held)

    def _clear(self, slots: Sequence[int]) -> None:
        # A header that stays names bytes that will be others: their checksum will differ.
        with suppress(OSError):
            for begin, end in _runs(slots):
                self._file.write_headers(slots[begin], [None] * (end - begin))

    def _write(
        self,
        slots: Sequence[int],
        blocks: Sequence[tuple[BlockName, Row]],
        checksums: Checksums,
    ) -> None:
        """Into neighbouring slots; known from then on."""
        self._file.write_slots(slots[0], [row.data for _, row in blocks])
        headers = []
        for (name, _), checksum in zip(blocks, checksums.tolist(), strict=True):
            self._sequence += 1
            headers.append(BlockHeader(name, checksum, self._sequence))
        self._file.write_headers(slots[0], headers)
        self._checksums[slots] = checksums
        self._slots.update(
            (name.digest, slot) for (name, _), slot in zip(blocks, slots, strict=True)
        )

    def _read_slots(self, slots: Sequence[int], rows: Sequence[Row]) -> tuple[int, str]:
        """Fill rows from slots: how many before the first that the disk does not give, and why."""
        for begin, end in _runs(slots):
            try:
                self._file.read_slots(slots[begin], [row.data for row in rows[begin:end]])
            except OSError:
                for index in range(begin, end):
                    try:
                        self._file.read_slots(slots[index], [rows[index].data])
                    except OSError as error:
                        return index, self._trouble(error)
        return len(slots), ""

    def _trouble(self, error: OSError) -> str:
        return f"{self._config.path}: {error.strerror or os.strerror(error.errno or 0)}"


def _runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where in the list neighbours follow each other: [begin, end)."""
    begin = 0
    for index in range(1, len(slots) + 1):
        if index == len(slots) or slots[index] != slots[index - 1] + 1:
            yield begin, index
            begin = index
