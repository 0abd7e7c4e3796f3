"""How a key of a cluster file is declared, and how a file is read by these declarations.

The sections of a file are dataclasses (`workers`, `requests`, and `file` for the top level). A key
is a field of one, declared there and nowhere else: its name with the unit as the last word, its
type, as `Annotated` the bounds (`msgspec.Meta`), the names it may be (`Known`) and who may know it
(`Secret`), and with `key` what it means and its default.

`build` makes the dataclasses from the nodes of a YAML file, where every mistake names file and
line. What a dataclass refuses in `__post_init__` (with `InvalidConfiguration`, or with `RefusedAt`
for a place within) is reported with its line.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import EnumType, StrEnum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import yaml
from msgspec import Meta

from tandem.config.cluster.tree import NULL, RefusedAt, mistake, node_at, spelled
from tandem.facts.errors import InvalidConfiguration, nearest
from tandem.facts.units import COUNT, SHARE, Quantity, unit_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known:
    """The names that a text (or a choice) may be; `what` heads the error."""

    what: str
    names: tuple[str, ...]


# Kinds of processes that are handed secrets, or not.
GATEWAY, WORKER, SHARED_POOL = "gateway", "worker", "shared pool"


@dataclass(frozen=True, slots=True)
class Secret:
    """Only processes of the kind `known_to` are handed the value (`without_secrets`)."""

    known_to: str


class Change(StrEnum):
    """When a running cluster heeds another value of a key (`tandem apply`)."""

    AT_ONCE = "at once"
    NEW_REQUESTS = "new requests"
    WORKERS = "starts/drains workers"
    WORKER_RESTART = "restart workers"
    NEVER = "no"


def key(
    meaning: str,
    *,
    default: Any = MISSING,
    factory: Any = MISSING,
    only: str = "",
    live: Change | None = None,
) -> Any:
    """A field of a section: what the key means, in a sentence, its value where it is left out (or
    what makes that), who alone heeds it, `live` or `simulator`, and when it changes in a running
    cluster (`live`; left out: as the section's own key has it, at the top of the file never)."""
    metadata = {"meaning": meaning, "only": only, "live": live}
    return field(default=default, default_factory=factory, metadata=metadata)


@dataclass_transform(frozen_default=True, field_specifiers=(key,))
def section(shape: type[T]) -> type[T]:
    """A section of a cluster file: a frozen dataclass whose fields are keys."""
    return dataclass(frozen=True, slots=True)(shape)


@dataclass(frozen=True, slots=True)
class Choice:
    """A name with parameters: `admission: none`, or `{name: threshold, max_kv_share: 0.9}`."""

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OptionsOf:
    """A mapping whose keys and values are some of a struct's fields. `elsewhere` says of the others
    where in the file they have a place of their own."""

    struct: type[msgspec.Struct]
    elsewhere: Mapping[str, str] = field(default_factory=dict)


def bare_type(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type without `Annotated` and None, and everything that it was annotated with."""
    rules: tuple[Any, ...] = ()
    while get_origin(hint) in (Annotated, Union, UnionType):
        if get_origin(hint) is Annotated:
            rules += hint.__metadata__
            hint = hint.__origin__
        else:
            hint = next(part for part in get_args(hint) if part is not NoneType)
    return hint, rules


def build(shape: type[T], tree: yaml.Node) -> T:
    """The dataclass that the tree describes. Raises `InvalidConfiguration`."""
    built: T = _dataclass(shape, tree)
    return built


def without_secrets(section: T, known_to: str) -> T:
    """The section for a process of that kind: secrets of others are as if they were not written."""
    hints = get_type_hints(type(section), include_extras=True)
    changed: dict[str, Any] = {}
    for entry in fields(section):  # type: ignore[arg-type]
        value = getattr(section, entry.name)
        rules = get_args(hints[entry.name])[1:]
        secret = next((rule for rule in rules if isinstance(rule, Secret)), None)
        options = next((rule for rule in rules if isinstance(rule, OptionsOf)), None)
        if secret is not None and secret.known_to != known_to:
            changed[entry.name] = entry.default
        elif options is not None:
            hidden = _secret_options(options.struct, known_to)
            changed[entry.name] = {key: given for key, given in value.items() if key not in hidden}
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            changed[entry.name] = tuple(without_secrets(each, known_to) for each in value)
        elif is_dataclass(value) and not isinstance(value, Choice):
            changed[entry.name] = without_secrets(value, known_to)
    return replace(section, **changed)  # type: ignore[type-var]


def _secret_options(struct: type[msgspec.Struct], known_to: str) -> set[str]:
    """Names of the options that processes of the kind must not know."""
    return {
        option.encode_name
        for option in msgspec.structs.fields(struct)
        for rule in get_args(option.type)[1:]
        if (rule.extra or {}).get("known_to", known_to) != known_to
    }


def _dataclass(shape: Any, node: yaml.Node) -> Any:
    if not isinstance(node, yaml.MappingNode):
        raise mistake(node, f"expected keys and values ({', '.join(_keys(shape))})")
    hints = get_type_hints(shape, include_extras=True)
    known = _keys(shape)
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = spelled(key_node.value)
        if key not in known:
            raise mistake(key_node, f"unknown key {key_node.value}{nearest(key, known)}")
        name = known[key]
        if name in values:
            raise mistake(key_node, f"{key} stands there twice")
        values[name] = _value(hints[name], value_node, name)
    for entry in fields(shape):
        needed = entry.default is MISSING and entry.default_factory is MISSING
        if needed and entry.name not in values:
            raise mistake(node, f"{unit_of(entry.name)[0]} is missing")
    try:
        return shape(**values)
    except RefusedAt as error:
        raise mistake(node_at(node, error.place), str(error)) from error
    except InvalidConfiguration as error:
        raise mistake(node, str(error)) from error


def _value(hint: Any, node: yaml.Node, name: str) -> Any:
    rules: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        rules = tuple(rest)
    if get_origin(hint) in (Union, UnionType):
        if node.tag == NULL:
            return None
        return _value(next(part for part in get_args(hint) if part is not NoneType), node, name)
    if hint is Choice:
        return _choice(node, name, rules)
    if is_dataclass(hint):
        return _dataclass(hint, node)
    if get_origin(hint) is tuple:
        if not isinstance(node, yaml.SequenceNode):
            raise mistake(node, f"{name}: expected a list")
        return tuple(_value(get_args(hint)[0], entry, name) for entry in node.value)
    if get_origin(hint) in (dict, Mapping):
        options = next((rule for rule in rules if isinstance(rule, OptionsOf)), None)
        if options is not None:
            return _options(options, node, name)
        return _mapping(get_args(hint)[1], node, name)
    if hint is object:
        return _plain(node)
    value = _scalar(hint, node, name)
    _check(value, node, name, rules)
    return value


def _mapping(hint: Any, node: yaml.Node, name: str) -> dict[str, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise mistake(node, f"{name}: expected keys and values")
    return {str(key.value): _value(hint, value, name) for key, value in node.value}


def _options(rule: OptionsOf, node: yaml.Node, name: str) -> dict[str, Any]:
    """The values by the names that the struct gives its fields, each of its field's type."""
    if not isinstance(node, yaml.MappingNode):
        raise mistake(node, f"{name}: expected keys and values")
    known = {spelled(each.encode_name): each for each in msgspec.structs.fields(rule.struct)}
    usable = [spelled_name for spelled_name in known if spelled_name not in rule.elsewhere]
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = spelled(key_node.value)
        if key in rule.elsewhere:
            raise mistake(key_node, f"{name}: {key} does not stand here; {rule.elsewhere[key]}")
        if key not in known:
            raise mistake(key_node, f"unknown key {key_node.value}{nearest(key, usable)}")
        if known[key].encode_name in values:
            raise mistake(key_node, f"{key} stands there twice")
        plain = _plain(value_node)
        if get_args(known[key].type)[:1] == (str,) and isinstance(plain, int | float):
            plain = str(plain)
        try:
            value = msgspec.convert(plain, known[key].type)
        except msgspec.ValidationError as error:
            problem = str(error).replace("`", "")
            raise mistake(value_node, f"{key}: {problem[0].lower()}{problem[1:]}") from error
        values[known[key].encode_name] = value
    return values


def _choice(node: yaml.Node, name: str, rules: tuple[Any, ...]) -> Choice:
    if isinstance(node, yaml.ScalarNode):
        chosen, parameters = node, dict[str, object]()
    else:
        parameters = _mapping(object, node, name)
        pairs = {str(key.value): value for key, value in node.value}
        if "name" not in pairs:
            raise mistake(node, f"{name}: name is missing; its parameters stand beside its name")
        chosen = pairs["name"]
        del parameters["name"]
    text = _scalar(str, chosen, name)
    _check(text, chosen, name, rules)
    return Choice(text, parameters)


def _scalar(hint: Any, node: yaml.Node, name: str) -> Any:
    key, quantity = unit_of(name)
    if not isinstance(node, yaml.ScalarNode) or node.tag == NULL:
        raise mistake(node, f"{key}: expected a single value")
    text = str(node.value)
    if hint is str:
        return text
    if hint is bool:
        if node.tag != "tag:yaml.org,2002:bool":
            raise mistake(node, f"{key}: expected true or false, got {text!r}")
        return text.lower() in ("true", "yes", "on")
    if isinstance(hint, EnumType):
        names = [str(value) for value in hint._value2member_map_]
        if text not in names:
            raise mistake(node, f"{key}: {text!r} is not one of {', '.join(names)}")
        return hint(text)
    assert hint in (int, float), f"{name} has no way to be written"
    return _amount(hint, node, key, quantity or (COUNT if hint is int else SHARE))


def _amount(hint: type, node: yaml.ScalarNode, key: str, quantity: Quantity) -> int | float:
    try:
        amount = quantity.read(str(node.value))
    except ValueError as error:
        raise mistake(node, f"{key}: {error}") from error
    if hint is int and not amount.is_integer():
        raise mistake(node, f"{key}: expected a whole number, got {node.value}")
    return int(amount) if hint is int else amount


def _check(value: Any, node: yaml.Node, name: str, rules: tuple[Any, ...]) -> None:
    key = unit_of(name)[0]
    for rule in rules:
        if isinstance(rule, Known) and value not in rule.names:
            raise mistake(node, f"unknown {rule.what} {value}{nearest(str(value), rule.names)}")
        if isinstance(rule, Meta):
            if rule.ge is not None and value < rule.ge:
                raise mistake(node, f"{key} must be at least {rule.ge:g}, got {node.value}")
            if rule.gt is not None and value <= rule.gt:
                raise mistake(node, f"{key} must be more than {rule.gt:g}, got {node.value}")
            if rule.le is not None and value > rule.le:
                raise mistake(node, f"{key} must be at most {rule.le:g}, got {node.value}")


def _plain(node: yaml.Node) -> object:
    """What stands there, without a schema: texts, numbers, lists and dicts."""
    try:
        return yaml.SafeLoader("").construct_object(node, deep=True)
    except yaml.constructor.ConstructorError as error:
        raise mistake(node, str(error.problem)) from error


def _keys(shape: Any) -> dict[str, str]:
    """The key in the file of every field."""
    return {unit_of(entry.name)[0]: entry.name for entry in fields(shape) if entry.init}
