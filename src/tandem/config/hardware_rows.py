"""Reads gzipped CSV files of measurements."""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

from tandem.facts.errors import InvalidConfiguration

Row = dict[str, str]


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a gzipped CSV file."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
            yield from csv.DictReader(text)
    except (OSError, EOFError) as problem:
        raise InvalidConfiguration(f"tables: {path} cannot be read: {problem}") from problem
