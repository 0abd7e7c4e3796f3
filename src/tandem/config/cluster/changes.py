"""What another cluster file changes in a cluster that runs, key by key: the old and the new value,
when it is heeded, and for what cannot change live what to do instead. Pure; `live.processes.apply`
carries it out."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_type_hints

import msgspec

from tandem.config.cluster.file import Cluster
from tandem.config.cluster.keys import Change, Choice, OptionsOf, Secret, bare_type
from tandem.config.cluster.tree import spelled
from tandem.facts.units import BYTES, SECONDS, size_text, unit_of

ABSENT = "-"
HIDDEN = "(secret)"
_RESTART = "`tandem down`, then `tandem up` with this file"
_OTHER_POOL = (
    "give the pool another name: its workers start, then those of the old one drain; or "
    "`tandem down` and `tandem up`"
)
_OTHER_WORKERS = "then `tandem restart --all`"


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key with another value: `place` is its path as `--set` has it, the values are as shown to
    a person (a secret never is). `instead` says how to have what does not change at once."""

    place: str
    old: str
    new: str
    when: Change
    instead: str = ""


def changes(old: Cluster, new: Cluster) -> tuple[KeyChange, ...]:
    """What the file of `new` changes in a cluster that runs as `old`, in the order of the keys.
    Keys that the simulator alone heeds are left out."""
    return tuple(_of_section(old, new, "", Change.NEVER))


def _of_section(old: Any, new: Any, path: str, inherited: Change) -> Iterator[KeyChange]:
    hints = get_type_hints(type(new), include_extras=True)
    for entry in fields(new):
        before, after = getattr(old, entry.name), getattr(new, entry.name)
        if before == after or entry.metadata.get("only") == "simulator":
            continue
        place = f"{path}.{unit_of(entry.name)[0]}".lstrip(".")
        when = entry.metadata.get("live") or inherited
        rules = bare_type(hints[entry.name])[1]
        options = next((rule for rule in rules if isinstance(rule, OptionsOf)), None)
        if any(isinstance(rule, Secret) for rule in rules):
            yield _changed(place, _hidden(before), _hidden(after), when)
        elif options is not None:
            yield from _of_options(options, before, after, place, when)
        elif _is_section(before) and _is_section(after):
            yield from _of_section(before, after, place, when)
        elif _is_entries(before or after):
            yield from _of_entries(before, after, place, when)
        else:
            yield _changed(place, _text(entry.name, before), _text(entry.name, after), when)


def _of_entries(
    old: tuple[Any, ...], new: tuple[Any, ...], path: str, when: Change
) -> Iterator[KeyChange]:
    """Entries go by their names, wherever they stand."""
    before = {each.name: each for each in old}
    after = {each.name: each for each in new}
    # A pool comes and goes with its workers.
    comes = Change.WORKERS if path == "pools" else when
    for name, entry in before.items():
        if name in after:
            yield from _of_section(entry, after[name], f"{path}.{name}", when)
        else:
            yield _changed(f"{path}.{name}", _summary(entry), ABSENT, comes)
    for name, entry in after.items():
        if name not in before:
            yield _changed(f"{path}.{name}", ABSENT, _summary(entry), comes)
            # A new entry is one change, but for its keys that do not change with it.
            own = _of_section(_bare_entry(entry), entry, f"{path}.{name}", comes)
            later = (Change.WORKER_RESTART, Change.NEVER)
            yield from (each for each in own if each.when in later)
    order = [name for name in before if name in after], [name for name in after if name in before]
    if path == "classes" and order[0] != order[1]:
        # A request belongs to the first class whose headers it has.
        yield _changed(path, ", ".join(order[0]), ", ".join(order[1]), when)


def _of_options(
    rule: OptionsOf,
    old: Mapping[str, object],
    new: Mapping[str, object],
    path: str,
    inherited: Change,
) -> Iterator[KeyChange]:
    """Options of `tandem serve`: whether one is live, and a secret, is declared with it."""
    for option in msgspec.structs.fields(rule.struct):
        name = option.encode_name
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        extra: dict[str, Any] = {}
        for meta in get_args(option.type):
            extra |= getattr(meta, "extra", None) or {}
        show = _hidden if "known_to" in extra else _plain
        when = Change.NEW_REQUESTS if extra.get("live") else inherited
        yield _changed(f"{path}.{spelled(name)}", show(before), show(after), when)


def _changed(place: str, old: str, new: str, when: Change) -> KeyChange:
    instead = ""
    if when is Change.NEVER:
        instead = _OTHER_POOL if place.startswith("pools.") else _RESTART
    elif when is Change.WORKER_RESTART:
        instead = _OTHER_WORKERS
    if old == new == HIDDEN:
        new = f"{HIDDEN} changed"
    return KeyChange(place, old, new, when, instead)


def _is_section(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, Choice)


def _is_entries(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and hasattr(value[0], "name")


def _summary(entry: Any) -> str:
    """The keys of a whole section that are not at their defaults, but its name."""
    bare = _bare_entry(entry)
    needed = (each.name for each in fields(entry) if _is_needed(each) and each.name != "name")
    written = [_text(name, getattr(entry, name)) for name in needed]
    beside = _of_section(bare, entry, "", Change.AT_ONCE)
    return ", ".join([*written, *(f"{each.place} {each.new}" for each in beside)]) or "as usual"


def _bare_entry(entry: Any) -> Any:
    """The same section with its needed keys alone."""
    return type(entry)(
        **{each.name: getattr(entry, each.name) for each in fields(entry) if _is_needed(each)}
    )


def _is_needed(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _hidden(value: object) -> str:
    return HIDDEN if value else ABSENT


def _text(field: str, value: object) -> str:
    """As it would be written into the file."""
    quantity = unit_of(field)[1]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if quantity is SECONDS:
            return f"{value:g}s" if value >= 1 or not value else f"{value * 1e3:g}ms"
        if quantity is BYTES:
            return size_text(int(value)) if value else "0"
    return _plain(value)


def _plain(value: object) -> str:
    match value:
        case None | () | "":
            return ABSENT
        case bool():
            return str(value).lower()
        case Choice(name, parameters):
            return name if not parameters else _plain({"name": name, **parameters})
        case Enum():
            return str(value.value)
        case float():
            return f"{value:g}"
        case Mapping():
            pairs = (f"{key}: {_plain(each)}" for key, each in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_plain, value)) + "]"
    if _is_section(value):
        return _summary(value)
    return str(value)
