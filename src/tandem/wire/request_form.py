"""How do requests look on the wire? Their tokens travel as unsigned 32-bit numbers in one piece,
little-endian, so that a prompt of 100,000 tokens costs a copy and not 100,000 objects.
"""

from array import array
from collections.abc import Sequence

import msgspec

from tandem.facts.messages import ImportsArrived, PrefillsArrived, RequestsArrived
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.wire.form import Form

TOKEN_BYTES = 4


class RequestForm(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A `Request`."""

    request_id: str
    prompt_tokens: bytes
    sampling: SamplingParameters
    output_tokens: bytes
    priority: int
    cache_salt: str
    tenant: str
    account: str


class RequestsForm(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`RequestsArrived`, and with `import_tokens` the two messages that have them."""

    requests: tuple[RequestForm, ...]
    import_tokens: tuple[int, ...] = ()


def _fold_all(message: RequestsArrived | PrefillsArrived | ImportsArrived) -> RequestsForm:
    import_tokens = () if isinstance(message, RequestsArrived) else message.import_tokens
    return RequestsForm(tuple(_fold(request) for request in message.requests), import_tokens)


def _fold(request: Request) -> RequestForm:
    return RequestForm(
        request.request_id,
        _packed(request.prompt_tokens),
        request.sampling,
        _packed(request.output_tokens),
        request.priority,
        request.cache_salt,
        request.tenant,
        request.account,
    )


def _unfold(form: RequestForm) -> Request:
    return Request(
        form.request_id,
        _unpacked(form.prompt_tokens),
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
    return RequestsArrived(tuple(map(_unfold, form.requests)))


def _unfold_prefills(form: RequestsForm) -> PrefillsArrived:
    return PrefillsArrived(tuple(map(_unfold, form.requests)), form.import_tokens)


def _unfold_imports(form: RequestsForm) -> ImportsArrived:
    return ImportsArrived(tuple(map(_unfold, form.requests)), form.import_tokens)


REQUEST_FORMS: dict[type, Form] = {
    RequestsArrived: Form(RequestsForm, _fold_all, _unfold_arrived),
    PrefillsArrived: Form(RequestsForm, _fold_all, _unfold_prefills),
    ImportsArrived: Form(RequestsForm, _fold_all, _unfold_imports),
}
