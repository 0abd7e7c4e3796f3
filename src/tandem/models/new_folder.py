"""The folder of a model that is made from another one's: it appears whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.facts.errors import InvalidConfiguration

# What else of a model's folder its copy needs: configuration, tokenizer, templates.
COPIED = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")


def require_absent(out: Path) -> None:
    """Raises `InvalidConfiguration` when there is something already."""
    if out.exists():
        raise InvalidConfiguration(f"{out} exists already; name a folder that does not")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to write into, which is `out` once the block has ended and nothing before. Raises
    `InvalidConfiguration` when there is one already or it cannot be written."""
    require_absent(out)
    half = out.with_name(f"{out.name}.incomplete")
    shutil.rmtree(half, ignore_errors=True)
    try:
        half.mkdir(parents=True)
        yield half
        half.rename(out)
    except OSError as problem:
        raise InvalidConfiguration(f"{out} cannot be written: {problem}") from problem
    finally:
        shutil.rmtree(half, ignore_errors=True)


def copy_texts(model: Path, folder: Path) -> None:
    """Everything of a model's folder but its weights."""
    copied = {path for pattern in COPIED for path in model.glob(pattern)}
    for path in sorted(copied):
        shutil.copyfile(path, folder / path.name)
