"""How much structure has a JSON text? Counted over the raw bytes, before anything is decoded, and
without holding the interpreter: numpy lets other threads run meanwhile."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_QUOTE, _BACKSLASH, _COLON = ord('"'), ord("\\"), ord(":")
_STRUCTURE = np.zeros(256, np.bool_)
_STRUCTURE[list(b",:[{")] = True


@dataclass(frozen=True, slots=True)
class JsonMarks:
    """Outside of strings: a colon for each key of an object, and `others`, of which one stands
    before each value that has no key, or opens an object or array."""

    colons: int
    others: int

    @property
    def all(self) -> int:
        return self.colons + self.others


def count_marks(data: bytes) -> JsonMarks:
    """Of a JSON text; of what is none, numbers that mean nothing."""
    text = np.frombuffer(data, np.uint8)
    # Odd from an opening quote on, even from the closing one on.
    parity = np.zeros(len(text), np.bool_)
    parity[_string_quotes(text)] = True
    inside = np.logical_xor.accumulate(parity)
    marks = text[_STRUCTURE[text] & ~inside]
    colons = int(np.count_nonzero(marks == _COLON))
    return JsonMarks(colons, len(marks) - colons)


def _string_quotes(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Where quotes stand that begin or end a string: an odd run of backslashes before one makes it
    a character."""
    quotes: npt.NDArray[np.intp] = np.flatnonzero(text == _QUOTE)
    slashes = np.flatnonzero(text == _BACKSLASH)
    if not len(slashes):
        return quotes
    begins = np.ones(len(slashes), np.bool_)
    begins[1:] = np.diff(slashes) != 1
    run_starts = np.maximum.accumulate(np.where(begins, slashes, 0))
    # The last backslash before each quote: directly before it, or of no concern.
    last = np.searchsorted(slashes, quotes) - 1
    known = np.maximum(last, 0)
    adjacent = (last >= 0) & (slashes[known] == quotes - 1)
    odd = (quotes - run_starts[known]) % 2 == 1
    begins_or_ends: npt.NDArray[np.intp] = quotes[~(adjacent & odd)]
    return begins_or_ends
