"""Reads fields of a config.json by type, with errors that name field, value and remedy.

Knows JSON, not models.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tandem.facts.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object under its `label` (for messages). A null counts as missing."""

    label: str
    values: dict[str, object]

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def is_null(self, name: str) -> bool:
        """Present and null, which some fields use to say "none"."""
        return name in self.values and self.values[name] is None

    def integer(self, name: str, default: int | None = None, *, other_name: str = "") -> int:
        """A positive whole number, under its other name where it has only that. Raises
        `InvalidConfiguration`, as all readers here do."""
        if other_name and not self.has(name) and self.has(other_name):
            name = other_name
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            self.refuse(name, "a positive whole number")
        return value

    def whole(self, name: str, default: int) -> int:
        """A whole number from 0 on."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.refuse(name, "a whole number, 0 or more")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(name, "a positive number")
        if not math.isfinite(value) or value <= 0:
            self.refuse(name, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            self.refuse(name, "a text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty when missing."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.refuse(name, "a list of texts")
        items = tuple(item for item in value if isinstance(item, str))
        if len(items) != len(value):
            self.refuse(name, "a list of texts")
        return items

    def group(self, name: str) -> "Fields | None":
        """A nested object, or None when missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        return Fields(f"{self.label}: {name}", {str(key): item for key, item in value.items()})

    def refuse(self, name: str, expected: str) -> NoReturn:
        raise InvalidConfiguration(
            f"{self.label}: {name} is {self.values.get(name)!r}; expected {expected}"
        )

    def _value(self, name: str, default: object) -> object:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise InvalidConfiguration(
                f"{self.label}: {name} is missing; this checkpoint is incomplete, or of a kind "
                "that needs a conversion first"
            )
        return default


def read_fields(path: Path) -> Fields:
    """The JSON object in a file. Raises `InvalidConfiguration` if there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidConfiguration(
            f"{path} does not exist; the directory of a model holds it beside the weights"
        ) from None
    except (OSError, ValueError) as problem:
        raise InvalidConfiguration(f"{path} cannot be read: {problem}") from problem
    if not isinstance(values, dict):
        raise InvalidConfiguration(f"{path} holds no JSON object")
    return Fields(path.name, values)
