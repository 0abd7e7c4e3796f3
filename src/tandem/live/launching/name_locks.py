"""Names of processes that somebody starts one by one on this machine, each held by a lock that ends
with its holder: of two that start together none gets the other's, though no gateway knows either
yet."""

import fcntl
import os
from pathlib import Path
from typing import BinaryIO

from tandem.live.launching.private_directory import check_parents, opened_private

# No process has a file of this kind in a state directory.
SUFFIX = ".name.lock"


class NameLocks:
    """Of one cluster, in the `folder` of this user. Names are held until `release_names`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: list[BinaryIO] = []

    def take(self, name: str) -> bool:
        """Whether nobody held the name: then it is held from now on. Raises `InvalidConfiguration`
        when the folder may be somebody else's."""
        check_parents(self._folder)
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with opened_private(self._folder) as directory:
            file = os.fdopen(os.open(f"{name}{SUFFIX}", flags, 0o600, dir_fd=directory), "wb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._held.append(file)
        return True

    def release_names(self) -> None:
        """The files stay: whoever removed one could remove another's lock with it."""
        while self._held:
            self._held.pop().close()
