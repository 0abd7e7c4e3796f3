"""Store of files and batches on the disk: who owns what, how much there may be, and for how long.

Everything is written before it counts, so a process that is killed finds it again. A full store
refuses what is new; what it has, it keeps until its time is over or its owner deletes it.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from tandem.api.batches.bodies import Purpose
from tandem.api.batches.disk import (
    DirectoryLock,
    remove,
    remove_halves,
    sync_directory,
    write_all,
    write_record,
)
from tandem.api.batches.records import NS_PER_S, BatchRecord, FileRecord
from tandem.api.clock_and_entropy import fresh_id, unix_time_ns
from tandem.api.config import BatchConfig
from tandem.api.errors import Refusal, Refused
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fair_shares import FairShares
from tandem.policy.batches import may_hold

logger = logging.getLogger(__name__)

Record = TypeVar("Record", FileRecord, BatchRecord)
FILENAME_CHARS = 255
_DATA, _RECORD = ".data", ".json"


class Upload:
    """A file that is being sent. It counts to its owner's share as it grows."""

    def __init__(self, store: "BatchStore", owner: str) -> None:
        self.owner = owner
        self.file_id = fresh_id("file-")
        self.size_bytes = 0
        self._store = store
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor: int | None = os.open(store.data_path(self.file_id), flags, 0o600)
        store.uploads[self.file_id] = owner

    async def write(self, data: bytes) -> None:
        """Raises `Refused` where it is too much."""
        self._store.check_size(self.size_bytes + len(data))
        self._store.hold(self.file_id, self.owner, len(data))
        self.size_bytes += len(data)
        assert self._descriptor is not None
        await _to_the_end(write_all, self._descriptor, data)

    async def finish(self, filename: str, expires_after_s: int | None) -> FileRecord:
        """It is on the disk, and its owner sees it."""
        await _to_the_end(self._close_synced)
        store, now_ns = self._store, unix_time_ns()
        lifetime_s = int(min(store.config.lifetime_s, expires_after_s or store.config.lifetime_s))
        record = FileRecord(
            file_id=self.file_id,
            owner=self.owner,
            filename=filename[:FILENAME_CHARS],
            purpose="batch",
            size_bytes=self.size_bytes,
            created_ns=now_ns,
            expires_s=now_ns // NS_PER_S + lifetime_s,
        )
        await store.add_file(record)
        return record

    async def end(self) -> None:
        """Nothing of it is left, unless it was finished. Raises `OSError`."""
        del self._store.uploads[self.file_id]
        if self.file_id in self._store.files:
            return
        self._store.release(self.file_id)
        await _to_the_end(self._remove)

    def _remove(self) -> None:
        self._close()
        remove(self._store.data_path(self.file_id))

    def _close_synced(self) -> None:
        assert self._descriptor is not None
        os.fsync(self._descriptor)
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


class BatchStore:
    """Use it from one event loop. `files` and `batches` are by name, in the order in which they
    were made. With `shared` an owner may hold half of what the others leave."""

    def __init__(self, config: BatchConfig, *, shared: bool) -> None:
        """Raises `InvalidConfiguration` for a folder that cannot be had, or that another server
        uses."""
        self.config = config
        self._shared = shared
        self._held: FairShares[str] = FairShares()
        # Files that are being sent, and their owners.
        self.uploads: dict[str, str] = {}
        self._changing = asyncio.Lock()
        directory = Path(config.directory).expanduser().absolute()
        self._files_at, self._batches_at = directory / "files", directory / "batches"
        try:
            for each in (directory, self._files_at, self._batches_at):
                each.mkdir(0o700, parents=True, exist_ok=True)
            self._lock = DirectoryLock(directory)
            for each in (self._files_at, self._batches_at):
                remove_halves(each)
                sync_directory(each.parent)
            self.files = _read(self._files_at, FileRecord, lambda each: each.file_id)
            self.batches = _read(self._batches_at, BatchRecord, lambda each: each.batch_id)
            self._unended = {
                name: each for name, each in self.batches.items() if not each.status.is_final
            }
            self._count_data()
        except OSError as error:
            problem = f"batch-directory {directory}: {error.strerror}"
            raise InvalidConfiguration(problem) from error

    def close(self) -> None:
        """Another server may use the folder."""
        self._lock.release()

    @property
    def held_bytes(self) -> int:
        return self._held.held

    def has_room_for(self, owner: str) -> bool:
        """Whether answers of this owner may grow."""
        return self._may_hold_bytes(owner, 1)

    @property
    def unended(self) -> Mapping[str, BatchRecord]:
        """The batches that have not ended, the oldest first."""
        return self._unended

    def data_path(self, file_id: str) -> Path:
        return self._files_at / (file_id + _DATA)

    def find_file(self, owner: str, file_id: str) -> FileRecord:
        """Raises `Refused` with 404."""
        found = self.files.get(file_id)
        if found is None or found.owner != owner:
            raise _gone("file", file_id)
        return found

    def find_batch(self, owner: str, batch_id: str) -> BatchRecord:
        """Raises `Refused` with 404."""
        found = self.batches.get(batch_id)
        if found is None or found.owner != owner:
            raise _gone("batch", batch_id)
        return found

    def begin_upload(self, owner: str) -> Upload:
        """Raises `Refused` where there are too many files already, and `OSError`."""
        self._check_files(owner, 1)
        return Upload(self, owner)

    def check_size(self, size_bytes: int) -> None:
        """Of one file. Raises `Refused` with 413."""
        if size_bytes > self.config.file_bytes:
            problem = f"the file has more than {self.config.file_bytes} bytes"
            raise Refused(Refusal(413, problem, "file_too_large", "file"))

    def hold_size(self, file_id: str, owner: str, size_bytes: int) -> None:
        """A file of answers has so many bytes now. They are never lost: no more requests run once
        their owner has no room."""
        self._held.discard(file_id)
        self._held.add_amount(file_id, owner, size_bytes)

    def hold(self, file_id: str, owner: str, more_bytes: int) -> None:
        """A file that is sent grows. Raises `Refused` where its owner may not hold as much."""
        if not self._may_hold_bytes(owner, more_bytes):
            raise _full("bytes of files")
        self._held.add_amount(file_id, owner, more_bytes)

    def release(self, file_id: str) -> None:
        self._held.discard(file_id)

    async def add_file(self, record: FileRecord) -> None:
        """Its data are on the disk; now its owner sees it. Nothing happens where it is there."""
        path = self._files_at / (record.file_id + _RECORD)
        await _to_the_end(write_record, path, msgspec.json.encode(record))
        self.files[record.file_id] = record

    async def publish(self, batch: BatchRecord, file_id: str, size_bytes: int, what: str) -> None:
        """Shows the answers of a batch to its owner."""
        now_ns, purpose = unix_time_ns(), "batch_output"
        await self.add_file(
            FileRecord(
                file_id=file_id,
                owner=batch.owner,
                filename=f"{batch.batch_id}_{what}.jsonl",
                purpose=msgspec.convert(purpose, Purpose),
                size_bytes=size_bytes,
                created_ns=now_ns,
                expires_s=now_ns // NS_PER_S + batch.output_lifetime_s,
            )
        )

    async def delete_file(self, file_id: str) -> None:
        """Raises `Refused` for a file of a batch that has not ended, and `OSError`."""
        if batch_id := self._user_of(file_id):
            problem = f"{batch_id} is not done with the file; cancel it first"
            raise Refused(Refusal(400, problem, "file_in_use", "file_id"))
        await self._forget_file(file_id)

    def _user_of(self, file_id: str) -> str | None:
        """The batch that has not ended and uses the file, if there is one."""
        users = (name for name, each in self._unended.items() if file_id in each.file_ids)
        return next(users, None)

    async def _forget_file(self, file_id: str) -> None:
        if self.files.pop(file_id, None) is not None:
            self.release(file_id)
            # Data without a record are swept at the next start.
            await _to_the_end(self._remove_file, file_id)

    async def discard_data(self, file_id: str) -> None:
        """Of a file that nobody has seen."""
        await asyncio.to_thread(remove, self.data_path(file_id))
        self.release(file_id)

    async def add_batch(self, record: BatchRecord) -> None:
        """Where there are too many, the oldest of its owner's that has ended is forgotten; its
        files stay. Raises `Refused` where none has, or its answers have no room; and `OSError`."""
        async with self._changing:
            self._check_files(record.owner, 2)
            if not self.has_room_for(record.owner):
                raise _full("bytes of files")
            if record.input_file_id not in self.files:
                raise _gone("file", record.input_file_id)
            own = [each for each in self.batches.values() if each.owner == record.owner]
            limit, others = self.config.limit_batches, len(self.batches) - len(own)
            if not may_hold(limit, len(own) + 1, others, shared=self._shared):
                ended = next((each for each in own if each.status.is_final), None)
                if ended is None:
                    raise _full("batches that have not ended")
                await self.forget_batch(ended.batch_id)
            await self._write_batch(record)
            self.batches[record.batch_id] = self._unended[record.batch_id] = record

    async def change_batch(
        self, batch_id: str, change: Callable[[BatchRecord], BatchRecord]
    ) -> BatchRecord:
        """One change after the other, each on the disk before the next. Raises what `change` does,
        `Refused` where the batch was just forgotten, and `OSError`."""
        async with self._changing:
            before = self.batches.get(batch_id)
            if before is None:
                raise _gone("batch", batch_id)
            after = change(before)
            if after != before:
                await self._write_batch(after)
                self.batches[batch_id] = after
                if after.status.is_final:
                    del self._unended[batch_id]
                else:
                    self._unended[batch_id] = after
            return after

    async def forget_batch(self, batch_id: str) -> None:
        if self.batches.pop(batch_id, None) is not None:
            await asyncio.to_thread(remove, self._batches_at / (batch_id + _RECORD))

    async def sweep(self, now_s: int) -> None:
        """What has been kept for its time goes."""
        for file in list(self.files.values()):
            if file.expires_s <= now_s and self._user_of(file.file_id) is None:
                await self._forget_file(file.file_id)
        for batch in list(self.batches.values()):
            if batch.ended_s is not None and batch.ended_s + self.config.lifetime_s <= now_s:
                await self.forget_batch(batch.batch_id)

    async def _write_batch(self, record: BatchRecord) -> None:
        path = self._batches_at / (record.batch_id + _RECORD)
        await _to_the_end(write_record, path, msgspec.json.encode(record))

    def _may_hold_bytes(self, owner: str, more_bytes: int) -> bool:
        own = self._held.held_by(owner)
        limit, others = self.config.limit_bytes, self._held.held - own
        return may_hold(limit, own + more_bytes, others, shared=self._shared)

    def _check_files(self, owner: str, more: int) -> None:
        """Those that are sent, and those that batches will have, are files already. Raises
        `Refused`."""
        owners = [each.owner for each in self.files.values()]
        owners += self.uploads.values()
        owners += [each.owner for each in self._unended.values() for _ in range(2)]
        own, limit = owners.count(owner), self.config.limit_files
        if not may_hold(limit, own + more, len(owners) - own, shared=self._shared):
            raise _full("files")

    def _remove_file(self, file_id: str) -> None:
        remove(self._files_at / (file_id + _RECORD))
        sync_directory(self._files_at)
        remove(self.data_path(file_id))

    def _count_data(self) -> None:
        """What lies there counts; what was being sent or deleted when a server ended goes."""
        owners = {each.file_id: each.owner for each in self.files.values()}
        for batch in self._unended.values():
            owners |= dict.fromkeys((batch.output_file_id, batch.error_file_id), batch.owner)
        there: set[str] = set()
        for path in self._files_at.glob(f"*{_DATA}"):
            file_id = path.name.removesuffix(_DATA)
            there.add(file_id)
            if file_id in owners:
                self._held.add_amount(file_id, owners[file_id], path.stat().st_size)
            else:
                remove(path)
        for file_id in self.files.keys() - there:
            del self.files[file_id]
            remove(self._files_at / (file_id + _RECORD))


async def _to_the_end(work: Callable[..., None], *arguments: object) -> None:
    """In a thread. Whoever gives up waits for its end all the same: a descriptor that was closed
    meanwhile could be that of another file."""
    working = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})
        raise


def _read(
    directory: Path, kind: type[Record], name_of: Callable[[Record], str]
) -> dict[str, Record]:
    """All records of a folder, the oldest first. One that cannot be read is left where it is, and
    said."""
    found: list[Record] = []
    for path in _records(directory):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=kind)
        except (msgspec.DecodeError, UnicodeError) as error:
            logger.warning("%s cannot be read and is left out: %s", path, error)
            continue
        if name_of(record) == path.name.removesuffix(_RECORD):
            found.append(record)
    found.sort(key=lambda each: (each.created_ns, name_of(each)))
    return {name_of(each): each for each in found}


def _records(directory: Path) -> Iterable[Path]:
    return sorted(directory.glob(f"*{_RECORD}"))


@contextmanager
def refused_if_disk_fails() -> Iterator[None]:
    """Raises `Refused` with 503 for `OSError`."""
    try:
        yield
    except OSError as error:
        logger.warning("the folder of batches: %s", error)
        problem = "the server's disk did not do what this call needs"
        raise Refused(Refusal(503, problem, "storage_failed")) from error


def _gone(what: str, name: str) -> Refused:
    problem = f"no {what} {name[:64]!r} is stored here, or not any more"
    return Refused(Refusal(404, problem, f"{what}_not_found", f"{what}_id"))


def _full(what: str) -> Refused:
    problem = f"the store holds as many {what} as you may have; delete files that you do not need"
    return Refused(Refusal(400, problem, "storage_full"))
