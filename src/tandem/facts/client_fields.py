"""Fields that a client may set in the body of a request, each declared once, where it is stored.

`client_field` marks the field of a dataclass. From the mark follow the field of the HTTP body, its
check, and its line in the API schema and on the reference page (`api/requests.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_MARK = "client_field"


@dataclass(frozen=True, slots=True)
class ClientField:
    """What is declared of one field: its `name` and `kind` (a plain type such as float), and what
    it means to a client.

    `between` are its bounds, both included, checked by the dataclass that stores it; `body` is
    what the reader of a body checks. A checkpoint's authors may have `recommended` a default.
    """

    name: str
    kind: type
    meaning: str
    between: tuple[float, float] | None
    body: msgspec.Meta | None
    recommended: bool


def client_field(
    default: T,
    meaning: str,
    *,
    between: tuple[float, float] | None = None,
    body: msgspec.Meta | None = None,
    recommended: bool = False,
) -> T:
    """The field of a dataclass with this default and these marks; see `ClientField`."""
    marks = {"meaning": meaning, "between": between, "body": body, "recommended": recommended}
    declared: T = field(default=default, metadata={_MARK: marks})
    return declared


def client_fields(owner: type[Any]) -> tuple[ClientField, ...]:
    """What the dataclass `owner` marks as a client's to set, in its order."""
    return tuple(
        ClientField(each.name, each.type, **each.metadata[_MARK])  # type: ignore[arg-type]
        for each in fields(owner)
        if _MARK in each.metadata
    )


def client_values(body: object, declared: Sequence[ClientField]) -> dict[str, Any]:
    """What `body` sets of these fields, by name."""
    values = ((each.name, getattr(body, each.name)) for each in declared)
    return {name: value for name, value in values if value is not None}
