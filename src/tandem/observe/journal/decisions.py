"""What a gateway machine decided, in words that are the same live and in a replay."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import Enum
from functools import cache

from tandem.messages.cluster import LeasesRenewed, ToWorker
from tandem.messages.gateway import AuditEnded, Deliver, GatewayEffect, SendToWorker
from tandem.messages.router import Explain
from tandem.messages.worker import ImportsArrived, PrefillsArrived, RequestsArrived
from tandem.observe.journal.records import Name

# Gives the name that stands in the journal for that by which workers know a request.
Naming = Callable[[str], Name]
_SCALARS = (str, int, float, Enum, type(None))


def decisions_of(effects: Iterable[GatewayEffect], naming: Naming) -> tuple[str | int, ...]:
    """One entry an effect, in order; explanations are none. How many tokens went to clients is a
    number."""
    told: list[str | int] = []
    for effect in effects:
        match effect:
            case Deliver(emission):
                told.append(len(emission.request_ids))
            case SendToWorker(peer, message):
                told.append(f"{peer}: {_message(message, naming)}")
            case Explain():
                pass
            case AuditEnded(operation_id, _, problem):
                told.append(f"AuditEnded operation_id={operation_id} problem={problem!r}")
            case _:
                told.append(_scalars(effect, naming))
    return tuple(told)


def _message(message: ToWorker, naming: Naming) -> str:
    match message:
        case RequestsArrived(requests):
            return "RequestsArrived " + " ".join(str(naming(each.request_id)) for each in requests)
        case PrefillsArrived(requests, tokens) | ImportsArrived(requests, tokens):
            named = (
                f"{naming(each.request_id)}+{pulled}"
                for each, pulled in zip(requests, tokens, strict=True)
            )
            return f"{type(message).__name__} " + " ".join(named)
        case LeasesRenewed(request_ids):
            return f"LeasesRenewed {len(request_ids)}"
        case _:
            return _scalars(message, naming)


def _scalars(message: object, naming: Naming) -> str:
    """The kind of a message and its fields, but for what workers themselves had told before:
    numbers of blocks, digests, addresses."""
    kind: type = type(message)
    parts = [kind.__name__]
    for name in _field_names(kind):
        value = getattr(message, name)
        if name == "request_id":
            parts.append(str(naming(value)))
        elif name == "request_ids":
            parts += [str(naming(each)) for each in value]
        elif isinstance(value, Enum):
            parts.append(f"{name}={value.value}")
        elif isinstance(value, _SCALARS):
            parts.append(f"{name}={value!r}")
        elif isinstance(value, tuple):
            parts.append(f"{len(value)} {name}")
    return " ".join(parts)


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
