"""What Grafana knows of dashboards, by the typed models that its makers publish: keys that they do
not have, and values that are not of their types."""

import enum
import json
import types
import typing
from collections.abc import Iterator

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

UNITS = {value for value in vars(units).values() if isinstance(value, str)}


def problems(written: dict) -> list[str]:
    """Of a dashboard, each with the place where it is."""
    register_default_plugins()
    model = Dashboard.from_json(written)
    known = json.loads(json.dumps(model, cls=JSONEncoder))
    return [*_unknown(written, known, ""), *_mistyped(model, Dashboard, "")]


def _unknown(written: object, known: object, place: str) -> Iterator[str]:
    """What a model did not take over."""
    match written, known:
        case dict(), dict():
            for key, value in written.items():
                yield from _unknown(value, known.get(key), f"{place}.{key}")
        case list(), list() if len(written) == len(known):
            for index, (one, other) in enumerate(zip(written, known, strict=True)):
                yield from _unknown(one, other, f"{place}[{index}]")
        case _ if written != known:
            yield f"{place} is not known: {written!r}"


def _mistyped(value: object, hint: object, place: str) -> Iterator[str]:
    """Models check no type themselves."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        found = [[*_mistyped(value, each, place)] for each in typing.get_args(hint)]
        yield from min(found, key=len)
    elif typing.get_origin(hint) is typing.Literal:
        if value not in typing.get_args(hint):
            yield f"{place} is {value!r}"
    elif typing.get_origin(hint) is list:
        if not isinstance(value, list):
            yield f"{place} is {value!r}"
            return
        (of,) = typing.get_args(hint)
        for index, each in enumerate(value):
            yield from _mistyped(each, of, f"{place}[{index}]")
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in list(hint):
            yield f"{place} is {value!r}"
    elif hint is float:
        if not isinstance(value, int | float):
            yield f"{place} is {value!r}"
    elif isinstance(hint, type) and not isinstance(value, hint):
        yield f"{place} is {value!r}"
    elif hasattr(type(value), "from_json"):
        for name, of in typing.get_type_hints(type(value)).items():
            yield from _mistyped(getattr(value, name), of, f"{place}.{name}")
