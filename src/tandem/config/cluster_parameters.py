"""Do the parameters that a cluster file gives a policy fit what the policy takes?"""

from collections.abc import Callable
from enum import EnumType
from inspect import signature
from types import NoneType
from typing import Any, get_args

import msgspec

from tandem.config.cluster_build import Choice
from tandem.config.cluster_tree import nearest
from tandem.config.cluster_units import COUNT, SHARE, unit_of
from tandem.facts.errors import InvalidConfiguration

_WRITTEN = (bool, int, float, str, NoneType)


def parameters(kind: str, choice: Choice, make: Callable[..., object]) -> dict[str, Any]:
    """The parameters of a choice, of the types with which `make` takes them; numbers may have the
    units of a cluster file. Raises `InvalidConfiguration` naming the parameter."""
    taken = signature(make, eval_str=True).parameters
    known = [name for name, each in taken.items() if _writable(each.annotation)]
    label = f"{kind} {choice.name}"
    for name in choice.parameters:
        if name not in known:
            other = nearest(name, known) if known else "; it takes none"
            raise InvalidConfiguration(f"{label} has no parameter {name}{other}")
    for name, each in taken.items():
        if each.default is each.empty and name not in choice.parameters:
            raise InvalidConfiguration(
                f"{label} needs {name}, as {{name: {choice.name}, {name}: ...}}"
            )
    return {
        name: _fitting(f"{label}: {name}", value, taken[name].annotation)
        for name, value in choice.parameters.items()
    }


def _writable(hint: Any) -> bool:
    """Whether a value of this type can be written down; other parameters are for programs."""
    parts = get_args(hint) or (hint,)
    return all(part in _WRITTEN or isinstance(part, EnumType) for part in parts)


def _fitting(label: str, value: object, hint: Any) -> Any:
    numbers = {int, float} & {hint, *get_args(hint)}
    try:
        if numbers and isinstance(value, str):
            quantity = unit_of(label)[1] or (COUNT if int in numbers else SHARE)
            amount = quantity.read(value)
            value = int(amount) if amount.is_integer() else amount
        return msgspec.convert(value, hint)
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidConfiguration(f"{label}: {error}") from error
