"""LoadGen's log files, read again: its verdict, its figures, and the answers of an accuracy run."""

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tandem.facts.errors import TandemError

SUMMARY = "mlperf_log_summary.txt"
ACCURACY = "mlperf_log_accuracy.json"
# The last line of a whole summary.
_COUNTED = re.compile(r"errors? encountered", re.IGNORECASE)
_ERRORS = re.compile(r"(\d+) ERRORS? encountered")


class NoResult(TandemError):
    """LoadGen left no log of a whole test."""


@dataclass(frozen=True)
class LoadgenSummary:
    """`valid` is None in accuracy mode, which LoadGen does not judge. `figures` are numbers by
    their names in the log; `reasons` say what was missed and what LoadGen recommends."""

    valid: bool | None
    reasons: tuple[str, ...]
    errors: int
    figures: Mapping[str, float]


class _LoggedAnswer(msgspec.Struct):
    """One line of the accuracy log: `data` is the memory of the answer, in hexadecimal."""

    qsl_idx: int
    data: str


def read_summary(folder: Path) -> LoadgenSummary:
    """Raises `NoResult`."""
    text = _read(folder / SUMMARY)
    if not _COUNTED.search(text):
        raise NoResult(f"LoadGen did not finish: see {folder}")
    found = _ERRORS.search(text)
    errors = int(found[1]) if found else 0
    judged = re.search(r"Result is\s*: (\w+)", text)
    missed = re.findall(r"^ +([A-Z][a-z ]+ satisfied)\s*: NO$", text, re.MULTILINE)
    advice = [
        " ".join(each.split()) for each in re.findall(r"^ \* (.+(?:\n [a-z].+)*)", text, re.M)
    ]
    reasons = [f"{name.removesuffix(' satisfied').lower()} not met" for name in missed]
    # An accuracy run has no reasons; a valid one's advice is no reason.
    reasons += [each for each in dict.fromkeys(advice) if missed and "Run successful" not in each]
    return LoadgenSummary(
        None if judged is None else judged[1] == "VALID", tuple(reasons), errors, _figures(text)
    )


def read_answers(folder: Path) -> dict[int, list[int]]:
    """The token ids of each sample's answer in the accuracy log. Raises `NoResult`."""
    path = folder / ACCURACY
    try:
        logged = msgspec.json.decode(_read(path), type=list[_LoggedAnswer])
    except msgspec.MsgspecError as error:
        raise NoResult(f"{path} is no accuracy log: {error}") from error
    return {each.qsl_idx: array("i", bytes.fromhex(each.data)).tolist() for each in logged}


def _figures(text: str) -> dict[str, float]:
    """Of lines as `50.00 percentile latency (ns)   : 3389252`."""
    figures = {}
    for line in text.splitlines():
        name, separator, value = line.rpartition(":")
        if separator:
            try:
                figures[name.strip()] = float(value)
            except ValueError:
                continue
    return figures


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise NoResult(f"LoadGen wrote no {path}") from error
