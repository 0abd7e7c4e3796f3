"""The keys that the processes of a cluster know each other by (CurveZMQ, Curve25519), and which
public keys may come in as what: workers, operators. Those stand in the set-up of the gateway, and
in a file that is read again when it changes: a key is added or revoked without a restart.

A line of the file is `worker KEY NAME` or `operator KEY NAME`; others begin with #.
"""

import logging
import os
import stat
import struct
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85

from tandem.facts.errors import InvalidConfiguration

KEY_BYTES = 32
Z85_CHARS = 40


class KeyPair(NamedTuple):
    """Both halves as Z85 text; the secret one stays with its owner."""

    public: str
    secret: str

    def __repr__(self) -> str:
        # A log line must never carry a secret.
        return f"KeyPair({self.public})"


def is_public(key: str) -> bool:
    """Whether this text can be a public key."""
    try:
        return len(key) == Z85_CHARS and len(z85.decode(key)) == KEY_BYTES
    except (KeyError, ValueError, OverflowError, struct.error):
        return False


def belong_together(pair: KeyPair) -> bool:
    """Whether the secret half is a key at all, and the public one is its."""
    if not is_public(pair.secret):
        return False
    return zmq.curve_public(pair.secret.encode()) == pair.public.encode()


def make_pair() -> KeyPair:
    """A fresh one."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


logger = logging.getLogger(__name__)


class PeerRole(StrEnum):
    """What a key is for. Workers are also the processes of the shared pool."""

    WORKER = "worker"
    OPERATOR = "operator"


class Admitted(NamedTuple):
    """One line: `name` is for people."""

    role: PeerRole
    public: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.role} {self.public} {self.name}".rstrip()


class AdmittedKeys:
    """`fixed` come in whatever the file holds; `version` grows with each reading of it. A file that
    names nobody lets nobody else in. Raises `InvalidConfiguration` for a file that cannot be read,
    or that everybody may write to."""

    def __init__(self, fixed: Iterable[Admitted] = (), file: Path | None = None) -> None:
        self.version = 0
        self._fixed = frozenset((line.role, line.public) for line in fixed)
        self._file = file
        self._seen = _signature(file)
        self._problem = ""
        self._known = self._fixed | (frozenset() if file is None else _read(file))

    def may(self, public: str, role: PeerRole) -> bool:
        """Whether the key is for that, as far as the file was read."""
        return (role, public) in self._known

    def admits(self, public: str) -> bool:
        """Whether the key may come in at all. What is new in the file counts at once."""
        if not self._knows(public):
            self.look()
        return self._knows(public)

    def look(self) -> bool:
        """Read the file if it has changed; whether it has. One that cannot be read leaves the last
        keys valid, and is tried again; one without keys revokes all of them."""
        signature = _signature(self._file)
        if self._file is None or signature == self._seen:
            return False
        self._seen = signature
        try:
            self._known = self._fixed | _read(self._file)
        except InvalidConfiguration as problem:
            # It may go without a change of the file, and is logged once.
            if str(problem) != self._problem:
                logger.error("%s; the keys that it held stay valid", problem)
            self._seen, self._problem = None, str(problem)
            return False
        self._problem = ""
        self.version += 1
        logger.warning("%s was read anew: %d keys may come in", self._file, len(self._known))
        return True

    def _knows(self, public: str) -> bool:
        return any(self.may(public, role) for role in PeerRole)


def _read(file: Path) -> frozenset[tuple[PeerRole, str]]:
    try:
        with file.open() as opened:
            mode = os.fstat(opened.fileno()).st_mode
            lines = opened.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"{file}, the keys that may come in: {error}") from error
    if mode & stat.S_IWOTH:
        raise InvalidConfiguration(
            f"{file}, the keys that may come in: everybody may write to it (mode {mode:o})"
        )
    known = set()
    for line in lines:
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 2 or words[0] not in set(PeerRole) or not is_public(words[1]):
            raise InvalidConfiguration(
                f"{file}, the keys that may come in: expected `worker KEY NAME` or `operator KEY "
                f"NAME`, got {words[0][:20]!r} ..."
            )
        known.add((PeerRole(words[0]), words[1]))
    if not known:
        logger.warning("%s names no key: nobody whose key would stand there may come in", file)
    return frozenset(known)


def _signature(file: Path | None) -> tuple[int, int, int, int] | None:
    try:
        found = file.stat() if file else None
    except OSError:
        return None
    # Of its times the one that nobody can set, and that other rights change as well.
    return found and (found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size)
