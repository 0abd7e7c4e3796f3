"""API keys that may come in, some of them in files that are read again when they change, so that a
key is replaced without a restart. `auth` asks for them.

Owns what was read last. A file that cannot be read leaves its last keys valid: an
operator's slip must not lock everybody out. One that holds nothing any more revokes them, and lets
nobody in.
"""

import hashlib
import hmac
import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from tandem.api.clock_and_entropy import monotonic_s
from tandem.api.config import ApiConfig, KeyFile, check_key
from tandem.facts.errors import InvalidConfiguration

logger = logging.getLogger(__name__)

# Between two looks at the files, in which nothing of them is asked of the system.
LOOK_S = 1.0
LARGEST_BYTES = 1 << 20

# What tells a file from the one it was: Kubernetes swaps a link above it, others rename or write.
Signature = tuple[int, int, int, int]


@dataclass(slots=True)
class _FileState:
    """A file as it was read last; `tried` is what was looked at since, as it was before it was
    read: what comes in between is found at the next look. None after a `problem`, which is said
    once: it may go without a change of the file."""

    tried: Signature | None
    keys: tuple[str, ...]
    problem: str = ""

    def failed(self, problem: str) -> None:
        """Its last keys stay valid."""
        if problem != self.problem:
            logger.warning("%s; the keys that it held stay valid", problem)
        self.problem, self.tried = problem, None


class KeyRing:
    """Reads all files at once; raises `InvalidConfiguration` for one without keys, or for a key
    that two tenants have."""

    def __init__(self, config: ApiConfig) -> None:
        self._fixed = dict.fromkeys(config.api_keys, "") | dict(config.tenants)
        self._read = {
            file: _FileState(_signature(file.path), read_key_file(file.path))
            for file in config.key_files
        }
        self._owners = self._all_owners()
        self._next_look_s = monotonic_s() + LOOK_S

    @property
    def is_open(self) -> bool:
        """Whether nobody needs a key."""
        return not self._fixed and not self._read

    def become(self, other: "KeyRing") -> None:
        """Have the keys and files of another ring, which is used up by that."""
        self._fixed, self._read, self._owners = other._fixed, other._read, other._owners
        self._next_look_s = other._next_look_s

    def owner_of(self, key: bytes) -> str | None:
        """The tenant whose key it is, empty for a key of nobody's in particular; None for one that
        may not come in."""
        self._look()
        # Digests of equal length, and every key compared: the time tells nothing about them.
        digest = digest_of(key)
        found = [owner for known, owner in self._owners if hmac.compare_digest(digest, known)]
        return found[0] if found else None

    def admits(self, tenant: str, digest: str) -> bool:
        """Whether a caller who came in before would still come in: a tenant with any of its keys,
        anybody else with the key of this digest."""
        self._look()
        if self.is_open:
            return True
        if tenant:
            return any(owner == tenant for _, owner in self._owners)
        return any(owner == "" and known.hex() == digest for known, owner in self._owners)

    def _look(self) -> None:
        if self._read and monotonic_s() >= self._next_look_s:
            self._next_look_s = monotonic_s() + LOOK_S
            self._reload_changed()

    def _reload_changed(self) -> None:
        came: dict[KeyFile, tuple[str, ...]] = {}
        for file, read in self._read.items():
            signature = _signature(file.path)
            if signature == read.tried:
                continue
            read.tried = signature
            try:
                came[file] = _keys_in(file.path)
            except InvalidConfiguration as problem:
                read.failed(str(problem))
        if came:
            self._accept(came)

    def _accept(self, came: dict[KeyFile, tuple[str, ...]]) -> None:
        """All together, since a key may have gone from one file to another; where they contradict
        each other, those that can be had. The others are tried again."""
        before = {file: self._read[file].keys for file in came}
        if not self._accepted(came):
            for file, keys in came.items():
                self._accepted({file: keys})
        if any(self._read[file].keys != keys for file, keys in before.items()):
            logger.warning("API keys were read anew: %d are valid now", len(self._owners))

    def _accepted(self, came: dict[KeyFile, tuple[str, ...]]) -> bool:
        """Whether these keys are what is valid now, beside those of the other files."""
        before = {file: self._read[file].keys for file in came}
        for file, keys in came.items():
            self._read[file].keys = keys
        try:
            self._owners = self._all_owners()
        except InvalidConfiguration as problem:
            for file, keys in before.items():
                self._read[file].keys = keys
            if len(came) == 1:
                self._read[next(iter(came))].failed(str(problem))
            return False
        for file in came:
            self._read[file].problem = ""
        return True

    def _all_owners(self) -> list[tuple[bytes, str]]:
        owners = dict(self._fixed)
        for file, read in self._read.items():
            for key in read.keys:
                if owners.setdefault(key, file.tenant) != file.tenant:
                    raise InvalidConfiguration(
                        f"{file.path}: one of its keys is already that of another tenant"
                    )
        return [(digest_of(key.encode()), owner) for key, owner in owners.items()]


def read_key_file(path: str) -> tuple[str, ...]:
    """One key a line; blank lines, and those that begin with #, do not count. Raises
    `InvalidConfiguration` when there is no key, or when everybody could put one there."""
    keys = _keys_in(path)
    if not keys:
        raise InvalidConfiguration(f"key file {path}: expected one key a line")
    return keys


def _keys_in(path: str) -> tuple[str, ...]:
    """The same, none among them."""
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(LARGEST_BYTES + 1).decode("ascii")
    except OSError as error:
        raise InvalidConfiguration(f"key file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidConfiguration(f"key file {path}: keys must be plain ASCII") from error
    if mode & stat.S_IWOTH:
        raise InvalidConfiguration(f"key file {path}: everybody may write to it (mode {mode:o})")
    lines = [line.strip() for line in content.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if len(content) > LARGEST_BYTES:
        raise InvalidConfiguration(f"key file {path}: expected one key a line")
    for key in keys:
        check_key(key)
    return tuple(dict.fromkeys(keys))


def _signature(path: str) -> Signature | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    # Of its times the one that nobody can set: a copy may keep the other.
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
