"""A secret of one user that outlives clusters: made once, in a file that only its owner reads."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandem.facts.errors import InvalidConfiguration
from tandem.live.channels.curve import make_keys

_MOST_BYTES: Final = 256


def secret_of(file: Path) -> str:
    """What the file says; where there is none, it is made. Raises `InvalidConfiguration` where the
    file is another user's, or readable by others, or no file at all."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.path.lexists(file):
            _make(file)
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as opened:
            state = os.fstat(opened.fileno())
            theirs = state.st_uid != os.geteuid() or state.st_mode & 0o077
            if theirs or not stat.S_ISREG(state.st_mode):
                raise InvalidConfiguration(
                    f"{file} is to be a file of this user that nobody else reads; remove it"
                )
            secret = opened.read(_MOST_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise InvalidConfiguration(f"{file}: {error.strerror}") from error
    if len(secret) < len(make_keys()[0].secret):
        raise InvalidConfiguration(
            f"{file} holds no whole secret; remove it, and a new one is made"
        )
    return secret


def _make(file: Path) -> None:
    """It appears whole; of several at the same moment the first one's stays. Raises `OSError`."""
    # For this user alone.
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    half = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as made:
            made.write(make_keys()[0].secret.encode())
        with suppress(FileExistsError):
            file.hardlink_to(half)
    finally:
        half.unlink()
