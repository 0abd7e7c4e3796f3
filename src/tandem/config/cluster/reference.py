"""Prints docs/cluster-keys.md, every key of a cluster file, from the declarations of the keys:

python -m tandem.config.cluster.reference > docs/cluster-keys.md
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum, EnumType
from typing import Any, get_args, get_origin, get_type_hints

from msgspec import Meta

from tandem.config.cluster.file import Cluster
from tandem.config.cluster.keys import Change, Choice, Known, OptionsOf, bare_type
from tandem.facts.slo import LEAST_URGENT
from tandem.facts.units import BYTES, SECONDS, size_text, unit_of

HEAD = """\
# Every key of a cluster file

Printed from the declarations in `config/cluster` by `python -m tandem.config.cluster.reference`.
What the keys are for stands in [cluster.md](cluster.md), [tiers.md](tiers.md) and
[simulate.md](simulate.md). `-` and `_` in keys are the same. Numbers carry their unit: times
`50ms`, `2s`, `10m`; sizes `64 GiB`, `256 GB`; bandwidths `50 GB/s`, `400 Gbit/s`; counts may be
`16k` or `2M`, shares `90%`. A *policy* is a name, or `{name: ..., with its parameters}`.

*live* says when a running cluster heeds another value (`tandem apply`): at once, for new requests,
by starting or draining workers, as its workers are restarted (`tandem restart --all`), or not at
all. Pools, classes and tenants may come and go; of `serve` at the top, `api_key`, `api_key_file`
and `allow_client_priority` hold for new requests.
"""
_COLUMNS = "| key | written as | default | live | meaning |\n|---|---|---|---|---|\n"
_PLAIN = {bool: "true or false", int: "count", float: "number", str: "text"}


@dataclass(frozen=True, slots=True)
class _Key:
    """A key's declaration, taken apart: its bare type, and its rules from the outside in."""

    name: str
    hint: Any
    rules: tuple[Any, ...]
    field: "Field[Any]"
    inherited: Change

    @property
    def section(self) -> Any:
        """The dataclass of the keys below it, if there are any."""
        inner = get_args(self.hint)[0] if get_origin(self.hint) is tuple else self.hint
        return inner if is_dataclass(inner) and inner is not Choice else None

    @property
    def meaning(self) -> str:
        text, only = self.field.metadata["meaning"], self.field.metadata.get("only")
        return f"{text} *({only} only)*" if only else str(text)

    @property
    def live(self) -> Change:
        """When a running cluster heeds another value."""
        return self.field.metadata.get("live") or self.inherited

    @property
    def live_text(self) -> str:
        """Nothing for a key whose own keys say it, and for what the simulator alone heeds."""
        only = self.field.metadata.get("only") == "simulator"
        return "" if only or self.section is not None or self.is_options else str(self.live)

    @property
    def is_options(self) -> bool:
        return any(isinstance(rule, OptionsOf) for rule in self.rules)

    @property
    def written(self) -> str:
        known = next((rule for rule in self.rules if isinstance(rule, Known)), None)
        if self.section is not None:
            many = "list of " if get_origin(self.hint) is tuple else ""
            return f"{many}keys and values"
        if self.is_options:
            return "options"
        return self._scalar(known) + self._bounds

    def _scalar(self, known: Known | None) -> str:
        quantity = unit_of(self.field.name)[1]
        if quantity is not None:
            return quantity.kind.removeprefix("a ")
        if known is not None:
            return _names(known.names)
        if isinstance(self.hint, EnumType):
            return _names(self.hint._value2member_map_)
        if get_origin(self.hint) is tuple:
            _, rules = bare_type(get_args(self.hint)[0])
            inner = next((rule for rule in rules if isinstance(rule, Known)), None)
            return f"list of {_names(inner.names)}" if inner else "list"
        if get_origin(self.hint) in (dict, Mapping):
            return "keys and values"
        return _PLAIN[self.hint]

    @property
    def _bounds(self) -> str:
        metas = [rule for rule in self.rules if isinstance(rule, Meta)]
        bounds = (("at least", "ge"), ("more than", "gt"), ("at most", "le"))
        # Nothing is negative, and whatever fits into a number needs no words.
        unsaid = (None, LEAST_URGENT)
        return "".join(
            f", {words} {bound:,g}"
            for words, key in bounds
            for bound in (getattr(meta, key) for meta in metas)
            if bound not in unsaid and (key, bound) != ("ge", 0)
        )

    @property
    def default(self) -> str:
        value = self.field.default
        if value is MISSING:
            needed = self.field.default_factory is MISSING
            return "**needed**" if needed else ""
        if value is None or value in ((), ""):
            return ""
        if isinstance(value, Choice):
            return f"`{value.name}`"
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, Enum | str):
            return f"`{getattr(value, 'value', value)}`"
        quantity = unit_of(self.field.name)[1]
        if quantity is SECONDS:
            return f"{value:g} s"
        if quantity is BYTES and value:
            return size_text(int(value))
        return "no bound" if value >= LEAST_URGENT else f"{value:,g}"


def reference() -> str:
    """The whole page."""
    return HEAD + "".join(_tables("", Cluster, Change.NEVER))


def _tables(path: str, shape: Any, inherited: Change) -> Iterator[str]:
    keys = _keys(shape, inherited)
    title = f"`{path}`" if path else "The top of the file"
    about = str(inspect.getdoc(shape)).replace("\n", " ")
    rows = "".join(
        f"| `{key.name}` | {key.written} | {key.default} | {key.live_text} | {key.meaning} |\n"
        for key in keys
    )
    yield f"\n## {title}\n\n{about}\n\n{_COLUMNS}{rows}"
    for key in keys:
        if key.section is not None:
            many = "[]" if get_origin(key.hint) is tuple else ""
            yield from _tables(f"{path}.{key.name}{many}".lstrip("."), key.section, key.live)


def _keys(shape: Any, inherited: Change) -> list[_Key]:
    hints = get_type_hints(shape, include_extras=True)
    found = []
    for entry in fields(shape):
        hint, rules = bare_type(hints[entry.name])
        found.append(_Key(unit_of(entry.name)[0], hint, rules, entry, inherited))
    return found


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(reference(), end="")
