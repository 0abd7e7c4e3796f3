"""Encoded records: how requests and other values look on the wire where not as they are."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tandem.facts.errors import TandemError
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
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


class RequestForm(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A `Request`, whose prompt is number `prompt` of its message."""

    request_id: str
    prompt: int
    sampling: SamplingParameters
    output_tokens: bytes
    priority: int
    cache_salt: str
    tenant: str
    account: str


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
    return RequestForm(
        request.request_id,
        prompt,
        request.sampling,
        _packed(request.output_tokens),
        request.priority,
        request.cache_salt,
        request.tenant,
        request.account,
    )


def _unfold_all(form: RequestsForm) -> tuple[Request, ...]:
    """Raises `ValueError` where requests and prompts do not fit each other."""
    prompts = [_unpacked(prompt) for prompt in form.prompts]
    named = 0
    for request in form.requests:
        if not 0 <= request.prompt <= named:
            raise ValueError(f"names prompt {request.prompt}, where {named} were named before")
        named = max(named, request.prompt + 1)
    if named != len(prompts):
        raise ValueError(f"has {len(prompts)} prompts, of which it names {named}")
    return tuple(_unfold(request, prompts[request.prompt]) for request in form.requests)


def _unfold(form: RequestForm, prompt_tokens: "array[int]") -> Request:
    return Request(
        form.request_id,
        prompt_tokens,
        form.sampling,
        tuple(_unpacked(form.output_tokens)),
        form.priority,
        form.cache_salt,
        form.tenant,
        form.account,
    )


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
