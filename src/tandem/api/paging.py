"""Pages of a list, as OpenAI has them: the newest first, so many, those after one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.facts.errors import InvalidRequest


def page_query(most: int) -> dict[str, dict[str, Any]]:
    """The parameters of a list of which a page has `most` entries, for the OpenAPI document."""
    return {
        "after": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": most},
        "order": {"enum": ["asc", "desc"]},
    }


@dataclass(frozen=True, slots=True)
class Page:
    """The names of what stands on it; whether there is more."""

    names: Sequence[str]
    has_more: bool

    @property
    def frame(self) -> dict[str, Any]:
        """What a list says beside its data."""
        return {
            "first_id": self.names[0] if self.names else None,
            "last_id": self.names[-1] if self.names else None,
            "has_more": self.has_more,
        }


def page_of(query: Mapping[str, str], names: Sequence[str], *, default: int, most: int) -> Page:
    """The page of `names`, the oldest first, that a query asks for. Raises `InvalidRequest`."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order", "must be asc or desc")
    limit = query.get("limit", str(default))
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 10 and 1 <= int(limit) <= most):
        raise InvalidRequest("limit", f"must be a number from 1 to {most}")
    ordered = list(names) if order == "asc" else list(reversed(names))
    after, begin = query.get("after", ""), 0
    if after:
        if after not in ordered:
            raise InvalidRequest("after", f"is none of the list: {after[:64]!r}")
        begin = ordered.index(after) + 1
    end = begin + int(limit)
    return Page(ordered[begin:end], end < len(ordered))
