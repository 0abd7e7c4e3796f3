"""What becomes of fields that a body has and its type does not: those that cannot change an answer
are ignored, others are refused by name, never ignored in silence."""

import difflib
from collections.abc import Mapping

from msgspec import Struct

from tandem.api.errors import Refusal, Refused
from tandem.api.other_fields import OPENAI, OtherFields

# In the API schema, marks such a field: "ignored" or "refused".
SUPPORT = "x-support"


def own_fields(document: Mapping[str, object], body_type: type[Struct]) -> dict[str, object]:
    """The part of a body that `body_type` describes. Raises `Refused` naming any other field."""
    known, others = body_type.__struct_fields__, _others(body_type)
    own = {}
    for name, value in document.items():
        if name in known:
            own[name] = value
        elif name not in others.ignored:
            _check_unsupported(name, value, known, others)
    return own


def unsupported_fields(body_type: type[Struct]) -> dict[str, object]:
    """JSON schemas of all that a body of this type may have beside its own fields, by name. The
    values of a refused one ask for nothing."""
    known, others = body_type.__struct_fields__, _others(body_type)
    ignored = sorted(others.ignored.difference(known))
    return {name: {SUPPORT: "ignored"} for name in ignored} | {
        name: {SUPPORT: "refused", "enum": [None, *others.refused[name]]}
        for name in sorted(others.refused.keys() - known)
    }


def unsupported(param: str, problem: str, code: str = "unsupported_parameter") -> Refused:
    """A known field, or a value of one, that this server does not support."""
    return Refused(Refusal(400, f"{param} {problem}", code, param))


def _others(body_type: type[Struct]) -> OtherFields:
    others: OtherFields = getattr(body_type, "other_fields", OPENAI)
    return others


def _check_unsupported(
    name: str, value: object, known: tuple[str, ...], others: OtherFields
) -> None:
    if name in others.refused:
        if value is None or any(_are_equal(value, each) for each in others.refused[name]):
            return
        code = others.codes.get(name, "unsupported_parameter")
        raise unsupported(name, "is not supported by this server", code)
    close = difflib.get_close_matches(name[:64], known, n=1)
    remedy = f"; did you mean {close[0]!r}?" if close else ""
    # A hostile name may be megabytes long.
    shown = name[:64]
    message = f"unknown field {shown!r}{remedy}"
    raise Refused(Refusal(400, message, "unknown_parameter", shown))


def _are_equal(value: object, neutral: object) -> bool:
    """As JSON has it: true is not 1."""
    return value == neutral and isinstance(value, bool) is isinstance(neutral, bool)
