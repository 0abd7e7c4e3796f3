"""How a message looks on the wire when not as it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Form:
    """It travels as a value of `kind`: `fold` is the way there, `unfold` the way back, which may
    raise `ValueError`."""

    kind: type
    fold: Callable[[Any], Any]
    unfold: Callable[[Any], Any]
