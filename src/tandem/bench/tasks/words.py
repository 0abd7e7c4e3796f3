"""The data files of the bundled tasks: reads them, and holds the word pools that several share."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent / "data"


def read_data(name: str) -> Mapping[str, Any]:
    """One of the TOML files of `data`. Lists keep their order: seeded tasks rest on it."""
    return tomllib.loads((_DATA / name).read_text(encoding="utf-8"))


_WORDS = read_data("words.toml")
# What the names and values of the recall task are made of; the pools do not overlap.
ADJECTIVES: tuple[str, ...] = tuple(_WORDS["adjectives"].split())
NOUNS: tuple[str, ...] = tuple(_WORDS["nouns"].split())
VALUES: tuple[str, ...] = tuple(_WORDS["values"].split())
