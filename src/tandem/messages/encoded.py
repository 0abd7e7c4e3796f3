"""Encoded records: how requests and other values look on the wire where not as they are."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import msgspec

from tandem.facts.errors import TandemError
from tandem.facts.request import Request
from tandem.messages.worker import ImportsArrived, PrefillsArrived, RequestsArrived


class BadMessage(TandemError):
    """These bytes are no message of ours. Says why, in few words and without their content."""


class OtherProtocol(BadMessage):
    """The sender speaks another version of the protocol, whose number is `protocol`."""

    def __init__(self, protocol: int, ours: int) -> None:
        super().__init__(f"speaks protocol {protocol}, and this process speaks {ours}")
        self.protocol = protocol


@dataclass(frozen=True, slots=True)
class Form:
    """It travels as a value of `kind`: `fold` is the way there, `unfold` the way back, which may
    raise `ValueError`."""

    kind: type
    fold: Callable[[Any], Any]
    unfold: Callable[[Any], Any]


TOKEN_BYTES = 4

# What of a request travels in another form: the number of its prompt, its output tokens packed.
_OTHER_FORMS = {"prompt_tokens": int, "output_tokens": bytes}
_FIELDS = {each.name: _OTHER_FORMS.get(each.name, each.type) for each in fields(Request)}
_VALUES: Callable[[object], tuple[Any, ...]] = attrgetter(*_FIELDS)
_PROMPT_NUMBER: Callable[[object], int] = attrgetter("prompt_tokens")
_PROMPT, _OUTPUT = (list(_FIELDS).index(name) for name in _OTHER_FORMS)


def _with_fields_of_request(form: type[msgspec.Struct]) -> Any:
    return msgspec.defstruct(
        form.__name__,
        [*_FIELDS.items()],
        array_like=True,
        forbid_unknown_fields=True,
        namespace={"__doc__": form.__doc__},
        module=form.__module__,
    )


@_with_fields_of_request
class RequestForm(msgspec.Struct):
    """A `Request`, all its fields in their order; its prompt is a number of its message."""


_NEW_FORM: Callable[..., RequestForm] = RequestForm


class RequestsForm(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`RequestsArrived`, and with `import_tokens` the two messages that have them. `prompts` stand
    in the order in which the requests first name them."""

    prompts: tuple[bytes, ...]
    requests: tuple[RequestForm, ...]
    import_tokens: tuple[int, ...] = ()


def _fold_all(message: RequestsArrived | PrefillsArrived | ImportsArrived) -> RequestsForm:
    import_tokens = () if isinstance(message, RequestsArrived) else message.import_tokens
    # Choices of one call share the very object: it is packed, and compared by content, once.
    numbers: dict[int, int] = {}
    prompts: dict[bytes, int] = {}
    forms: list[RequestForm] = []
    for request in message.requests:
        number = numbers.get(id(request.prompt_tokens))
        if number is None:
            number = prompts.setdefault(_packed(request.prompt_tokens), len(prompts))
            numbers[id(request.prompt_tokens)] = number
        forms.append(_fold(request, number))
    return RequestsForm(tuple(prompts), tuple(forms), import_tokens)


def _fold(request: Request, prompt: int) -> RequestForm:
    values = list(_VALUES(request))
    values[_PROMPT] = prompt
    values[_OUTPUT] = _packed(request.output_tokens)
    return _NEW_FORM(*values)


def _unfold_all(form: RequestsForm) -> tuple[Request, ...]:
    """Raises `ValueError` where requests and prompts do not fit each other."""
    prompts = [_unpacked(prompt) for prompt in form.prompts]
    numbers: list[int] = [_PROMPT_NUMBER(request) for request in form.requests]
    named = 0
    for number in numbers:
        if not 0 <= number <= named:
            raise ValueError(f"names prompt {number}, where {named} were named before")
        named = max(named, number + 1)
    if named != len(prompts):
        raise ValueError(f"has {len(prompts)} prompts, of which it names {named}")
    return tuple(
        _unfold(request, prompts[number])
        for request, number in zip(form.requests, numbers, strict=True)
    )


def _unfold(form: RequestForm, prompt_tokens: "array[int]") -> Request:
    values = list(_VALUES(form))
    values[_PROMPT] = prompt_tokens
    values[_OUTPUT] = tuple(_unpacked(values[_OUTPUT]))
    return Request(*values)


def _packed(tokens: "Sequence[int] | array[int]") -> bytes:
    tokens = tokens if isinstance(tokens, array) else array("I", tokens)
    return tokens.tobytes()


def _unpacked(data: bytes) -> "array[int]":
    """Raises `ValueError` when the bytes are no whole number of tokens."""
    tokens = array("I")
    tokens.frombytes(data)
    return tokens


def _unfold_arrived(form: RequestsForm) -> RequestsArrived:
    if form.import_tokens:
        raise ValueError("has import_tokens")
    return RequestsArrived(_unfold_all(form))


def _unfold_prefills(form: RequestsForm) -> PrefillsArrived:
    return PrefillsArrived(_unfold_all(form), form.import_tokens)


def _unfold_imports(form: RequestsForm) -> ImportsArrived:
    return ImportsArrived(_unfold_all(form), form.import_tokens)


REQUEST_FORMS: dict[type, Form] = {
    RequestsArrived: Form(RequestsForm, _fold_all, _unfold_arrived),
    PrefillsArrived: Form(RequestsForm, _fold_all, _unfold_prefills),
    ImportsArrived: Form(RequestsForm, _fold_all, _unfold_imports),
}
