"""What a model is, by its content: a digest of what the decoder reads. Its name says nothing:
weights are replaced in their folder, and a branch on the hub moves.

Owns the records of digests in the user's cache directory: reading a checkpoint costs as much as
loading it, and files that have not changed since are not read again.
"""

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Final

import msgspec

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.kernels.packed import Storage
from tandem.models.checkpoint import weight_files
from tandem.models.formats.contract import Quantization

# Large files are digested in pieces, side by side; the digest is that of the pieces' digests.
# SHA-256 is what today's processors have instructions for: there it is twice as fast as BLAKE2b.
PIECE_BYTES: Final = 8 << 20
MOST_THREADS: Final = 8
# A file may change twice within a tick of its file system's clock and keep its times. No record is
# made of what is read so soon after its last change.
SETTLED_NS: Final = 2_000_000_000


class FileState(msgspec.Struct, frozen=True):
    """A file as it was when it was read: whoever changes or replaces it changes one of these, and
    `changed_ns` (ctime) cannot be set back."""

    path: str
    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


class _Record(msgspec.Struct, frozen=True):
    """The digest of a file in that state."""

    state: FileState
    digest: str


@dataclass(frozen=True, slots=True)
class Weights:
    """`digest` is that of the bytes of `files`, which were in these states when they were read.
    Dummy weights have no files."""

    digest: str
    files: tuple[FileState, ...] = ()

    def check_unchanged(self) -> None:
        """Call it when all that is wanted has been read from the files: what was digested is what
        was read. Raises `InvalidConfiguration` when a file has changed since."""
        for state in self.files:
            if state_of(Path(state.path)) != state:
                raise InvalidConfiguration(
                    f"{state.path} changed while it was being loaded; start again when it is whole"
                )


def dummy_weights(seed: int) -> Weights:
    """What random weights of that seed are known by."""
    return Weights(f"dummy {seed}")


def checkpoint_weights(directory: Path, cache: Path, threads: int) -> Weights:
    """Of all files in a directory that weights are read from. Digests are kept in the folder
    `cache`, which need not be there or writable. Raises `InvalidConfiguration` when a file is
    missing or changes meanwhile."""
    files = weight_files(directory)
    known = [_digested(path, cache, threads) for path in files]
    digest = blake2b(digest_size=16)
    for path, (_, text) in zip(files, known, strict=True):
        digest.update(f"{path.name}\0{text}\0".encode())
    return Weights(digest.hexdigest(), tuple(state for state, _ in known))


def content_of(
    spec: ModelSpec,
    storage: Storage,
    weights: Weights,
    quantization: Quantization | None = None,
    *,
    as_stored: bool = False,
) -> str:
    """The model as one digest: `spec` as it stands in its configuration, not as it was cut for a
    server, and its weights, held as `storage`; of quantised ones, what the bytes in the files mean,
    and whether they stay codes."""
    digest = blake2b(digest_size=16)
    parts = [repr(spec), storage, weights.digest]
    if quantization is not None:
        parts += [repr(quantization), "codes" if as_stored else "values"]
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def state_of(path: Path) -> FileState:
    """As it is now; under its own name, what a link leads to. Raises `InvalidConfiguration`."""
    try:
        return _state(path, path.stat())
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error.strerror}") from error


def _state(path: Path, found: os.stat_result) -> FileState:
    return FileState(
        str(path.absolute()),
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )


def _digested(path: Path, cache: Path, threads: int) -> tuple[FileState, str]:
    """A file, and its digest: as recorded, or read now. Of several processes that want one, the
    first reads."""
    state = state_of(path)
    record = cache / f"{blake2b(state.path.encode(), digest_size=12).hexdigest()}.json"
    if found := _recorded(record, state):
        return state, found
    with _lock(cache / "lock") as begun_ns:
        if found := _recorded(record, state):
            return state, found
        digest = digest_file(path, threads)
        if state_of(path) != state:
            raise InvalidConfiguration(
                f"{path} changed while it was being read; start again when it is whole"
            )
        if begun_ns is not None and begun_ns - state.changed_ns >= SETTLED_NS:
            _write(record, _Record(state, digest))
    return state, digest


def digest_file(path: Path, threads: int) -> str:
    """Of the bytes of a file, read once by so many threads at most. Raises
    `InvalidConfiguration`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error.strerror}") from error
    try:
        size_bytes = os.fstat(descriptor).st_size
        pieces = range(0, size_bytes, PIECE_BYTES)
        threads = max(1, min(threads, MOST_THREADS, len(pieces)))
        if threads == 1:
            digests = _pieces(descriptor, pieces)
        else:
            shares = [pieces[i::threads] for i in range(threads)]
            with ThreadPoolExecutor(threads, "digest") as pool:
                done = list(pool.map(lambda share: _pieces(descriptor, share), shares))
            digests = [done[i % threads][i // threads] for i in range(len(pieces))]
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return sha256(size_bytes.to_bytes(8, "little") + b"".join(digests)).hexdigest()


def _pieces(descriptor: int, starts: Sequence[int]) -> list[bytes]:
    """The digest of the piece at each of these places."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    digests = []
    for start in starts:
        filled = 0
        while filled < PIECE_BYTES and (
            came := os.preadv(descriptor, [buffer[filled:]], start + filled)
        ):
            filled += came
        digests.append(sha256(buffer[:filled]).digest())
    return digests


def _recorded(record: Path, state: FileState) -> str:
    """The digest that is known of a file in that state; empty when none is."""
    try:
        descriptor = os.open(record, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        # What somebody else could have written would let him name other weights as these.
        private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077
        if not private or found.st_uid != os.geteuid() or found.st_nlink != 1:
            return ""
        try:
            known = msgspec.json.decode(file.read(), type=_Record)
        except (msgspec.MsgspecError, OSError):
            return ""
    return known.digest if known.state == state else ""


def _write(record: Path, known: _Record) -> None:
    """The record appears whole or not at all; without room for it nothing is lost."""
    half = record.with_suffix(f".{os.getpid()}.new")
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(half, flags, 0o600), "wb") as file:
            file.write(msgspec.json.encode(known))
        half.replace(record)


@contextmanager
def _lock(path: Path) -> Iterator[int | None]:
    """Gives what time it was when it was got, by the clock of that file system; None where there
    can be no such file, or it cannot be locked, and then nobody waits."""
    descriptor, got_ns = None, None
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o600)
    if descriptor is None:
        yield None
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.utime(descriptor)
            got_ns = os.fstat(descriptor).st_mtime_ns
        yield got_ns
    finally:
        os.close(descriptor)
