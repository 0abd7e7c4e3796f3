"""Dispatch policies by name, each with its parameters; all take `transfer`."""

from collections.abc import Callable, Sequence

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.dispatch.contract import Dispatching, Transfer
from tandem.policy.dispatch.long_prompts import LEAST_PRIORITY, LONG_TOKENS, LongPrompts
from tandem.policy.dispatch.rules import AlwaysLocal, AlwaysRemote, Conditional, GlobalQueue
from tandem.policy.dispatch.seconds import SecondsDispatch

_PLAIN: dict[str, Callable[..., Dispatching]] = {
    "local": AlwaysLocal,
    "remote": AlwaysRemote,
    "conditional": Conditional,
    "seconds": SecondsDispatch,
}


def _inner(name: str, transfer: Transfer) -> Dispatching:
    if name not in _PLAIN:
        raise InvalidConfiguration(f"inner dispatch is {name}; choose one of {', '.join(_PLAIN)}")
    return _PLAIN[name](transfer=transfer)


def _queue(inner: str = "remote", transfer: Transfer = Transfer.PULL) -> Dispatching:
    return GlobalQueue(transfer=transfer, inner=_inner(inner, transfer))


def _long_prompts(
    workers: Sequence[str],
    inner: str = "remote",
    transfer: Transfer = Transfer.PUSH,
    *,
    long_tokens: int = LONG_TOKENS,
    least_priority: int = LEAST_PRIORITY,
) -> Dispatching:
    wrapped = _inner(inner, transfer)
    return LongPrompts(tuple(workers), long_tokens, least_priority, transfer, wrapped)


DISPATCHES: dict[str, Callable[..., Dispatching]] = {
    **_PLAIN,
    "queue": _queue,
    "long-prompts": _long_prompts,
}
