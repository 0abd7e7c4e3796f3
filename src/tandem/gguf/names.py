"""Names of GGUF files, and of the several that one model may be split over."""

import re
from pathlib import Path
from typing import Final

from tandem.facts.errors import InvalidConfiguration

SUFFIX: Final = ".gguf"
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def is_gguf(path: Path) -> bool:
    """Whether that is the name of a GGUF file."""
    return path.suffix.lower() == SUFFIX


def first_shard(path: Path) -> Path:
    """The file that has the metadata, of a model that is split over several; else the same."""
    found = _SHARD.fullmatch(path.name)
    return path if found is None else path.with_name(_shard_name(found, 1))


def shard_paths(path: Path) -> tuple[Path, ...]:
    """All files of the model that begins in the file `path`, in order."""
    found = _SHARD.fullmatch(path.name)
    if found is None:
        return (path,)
    count = int(found["count"])
    # A name makes nothing of what is not there.
    present = sum(1 for _ in path.parent.glob(f"*-of-{found['count']}{SUFFIX}"))
    if not 1 <= count <= present:
        raise InvalidConfiguration(
            f"{path} is one of {count} files, which lie beside each other; {present} are there"
        )
    return tuple(path.with_name(_shard_name(found, number + 1)) for number in range(count))


def model_stem(path: Path) -> str:
    """The name of a GGUF file without its ending and its number of several."""
    found = _SHARD.fullmatch(path.name)
    return path.stem if found is None else found["stem"]


def _shard_name(found: re.Match[str], number: int) -> str:
    return f"{found['stem']}-{number:05}-of-{found['count']}{SUFFIX}"
