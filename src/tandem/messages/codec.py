"""The codec: messages to bytes and back, with every malformed input refused as `BadMessage`.

One byte for the protocol, one for the type, then msgpack. Whatever is not exactly a message of a
known type is `BadMessage`, never anything else. Knows no socket, and no meaning of a message.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_args

import msgspec

from tandem.facts.bounds import Count
from tandem.facts.errors import TandemError
from tandem.facts.request import Request
from tandem.messages.checks import BadMessage, OtherProtocol, check
from tandem.messages.cluster import PROTOCOL, ToGateway, ToWorker
from tandem.messages.observation import ObservationMessage
from tandem.messages.operator import OperatorMessage
from tandem.messages.worker import ImportsArrived, PrefillsArrived, RequestsArrived


@dataclass(frozen=True, slots=True)
class Encoding:
    """How messages of one type are encoded that do not travel as they are: `encode` makes a value
    of `kind` of them; `decode` is its inverse and may raise `ValueError`."""

    kind: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


# What of a request is encoded otherwise: the number of its prompt, its output tokens packed.
_ENCODED_AS = {"prompt_tokens": int, "output_tokens": bytes}
_FIELDS = {each.name: _ENCODED_AS.get(each.name, each.type) for each in fields(Request)}
_VALUES: Callable[[object], tuple[Any, ...]] = attrgetter(*_FIELDS)
_PROMPT_NUMBER: Callable[[object], int] = attrgetter("prompt_tokens")
_PROMPT, _OUTPUT = (list(_FIELDS).index(name) for name in _ENCODED_AS)


def _with_fields_of_request(kind: type[msgspec.Struct]) -> Any:
    return msgspec.defstruct(
        kind.__name__,
        [*_FIELDS.items()],
        array_like=True,
        forbid_unknown_fields=True,
        namespace={"__doc__": kind.__doc__},
        module=kind.__module__,
    )


@_with_fields_of_request
class EncodedRequest(msgspec.Struct):
    """A `Request`, all its fields in their order; its prompt is a number of its message."""


_NEW_REQUEST: Callable[..., EncodedRequest] = EncodedRequest


class EncodedRequests(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`RequestsArrived` and the two messages like it. `prompts` are in the order in which the
    requests first name them."""

    prompts: tuple[bytes, ...]
    requests: tuple[EncodedRequest, ...]
    import_tokens: tuple[Count, ...] = ()


def _encode_requests(
    message: RequestsArrived | PrefillsArrived | ImportsArrived,
) -> EncodedRequests:
    # Choices of one call share the very object: it is packed, and compared by content, once.
    numbers: dict[int, int] = {}
    prompts: dict[bytes, int] = {}
    requests: list[EncodedRequest] = []
    for request in message.requests:
        number = numbers.get(id(request.prompt_tokens))
        if number is None:
            number = prompts.setdefault(_packed(request.prompt_tokens), len(prompts))
            numbers[id(request.prompt_tokens)] = number
        requests.append(_encode_request(request, number))
    return EncodedRequests(tuple(prompts), tuple(requests), message.import_tokens)


def _encode_request(request: Request, prompt: int) -> EncodedRequest:
    values = list(_VALUES(request))
    values[_PROMPT] = prompt
    values[_OUTPUT] = _packed(request.output_tokens)
    return _NEW_REQUEST(*values)


def _decode_requests(encoded: EncodedRequests) -> tuple[Request, ...]:
    """Raises `ValueError` where requests and prompts do not fit each other."""
    prompts = [_unpacked(prompt) for prompt in encoded.prompts]
    numbers: list[int] = [_PROMPT_NUMBER(request) for request in encoded.requests]
    named = 0
    for number in numbers:
        if not 0 <= number <= named:
            raise ValueError(f"names prompt {number}, where {named} were named before")
        named = max(named, number + 1)
    if named != len(prompts):
        raise ValueError(f"has {len(prompts)} prompts, of which it names {named}")
    return tuple(
        _decode_request(request, prompts[number])
        for request, number in zip(encoded.requests, numbers, strict=True)
    )


def _decode_request(encoded: EncodedRequest, prompt_tokens: "array[int]") -> Request:
    values = list(_VALUES(encoded))
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


def _decode_arrived(encoded: EncodedRequests) -> RequestsArrived:
    return RequestsArrived(_decode_requests(encoded), encoded.import_tokens)


def _decode_prefills(encoded: EncodedRequests) -> PrefillsArrived:
    return PrefillsArrived(_decode_requests(encoded), encoded.import_tokens)


def _decode_imports(encoded: EncodedRequests) -> ImportsArrived:
    return ImportsArrived(_decode_requests(encoded), encoded.import_tokens)


REQUEST_ENCODINGS: dict[type, Encoding] = {
    RequestsArrived: Encoding(EncodedRequests, _encode_requests, _decode_arrived),
    PrefillsArrived: Encoding(EncodedRequests, _encode_requests, _decode_prefills),
    ImportsArrived: Encoding(EncodedRequests, _encode_requests, _decode_imports),
}


M = TypeVar("M")

MESSAGE_LIMIT_BYTES = 64 << 20
HEAD_BYTES = 2
# What msgspec, the encodings and the dataclasses themselves raise for impossible values.
_REFUSALS = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    TandemError,
)


class Codec(Generic[M]):
    """Messages of these types, each known by its place: new ones are added at the end. `protocol`
    leads every message."""

    def __init__(
        self,
        *message_types: type[M],
        encodings: Mapping[type, Encoding] | None = None,
        protocol: int = PROTOCOL,
    ) -> None:
        encodings = encodings or {}
        self._protocol = protocol
        self._encoder = msgspec.msgpack.Encoder()
        self._numbers = {kind: number for number, kind in enumerate(message_types)}
        self._encodings = {
            kind: encodings[kind].encode for kind in message_types if kind in encodings
        }
        self._decoders = [_decoder(kind, encodings.get(kind)) for kind in message_types]

    def encode(self, message: M, *, protocol: int | None = None) -> bytes:
        """The bytes of a message. Another `protocol`: for refusing a process that speaks it."""
        kind = type(message)
        head = bytes((self._protocol if protocol is None else protocol, self._numbers[kind]))
        encode = self._encodings.get(kind)
        return head + self._encoder.encode(encode(message) if encode else message)

    def decode(self, data: bytes) -> M:
        """The message in these bytes. Raises `BadMessage`."""
        if not HEAD_BYTES <= len(data) <= MESSAGE_LIMIT_BYTES:
            raise BadMessage(f"has {len(data)} bytes")
        if data[0] != self._protocol:
            raise OtherProtocol(data[0], self._protocol)
        if data[1] >= len(self._decoders):
            raise BadMessage(f"is of the unknown type {data[1]}")
        try:
            message: M = self._decoders[data[1]](memoryview(data)[HEAD_BYTES:])
            check(message)
        except BadMessage:
            raise
        except _REFUSALS as error:
            raise BadMessage(f"cannot be read: {_short(error)}") from error
        return message


def _decoder(kind: type, encoding: Encoding | None) -> Callable[[memoryview], Any]:
    if encoding is None:
        return msgspec.msgpack.Decoder(kind).decode
    read: Callable[[memoryview], Any] = msgspec.msgpack.Decoder(encoding.kind).decode
    decode = encoding.decode
    return lambda data: decode(read(data))


def _short(error: Exception) -> str:
    return str(error)[:200]


TO_GATEWAY: Codec[ToGateway] = Codec(*get_args(ToGateway))
TO_WORKER: Codec[ToWorker] = Codec(*get_args(ToWorker), encodings=REQUEST_ENCODINGS)
OPERATOR: Codec[OperatorMessage] = Codec(*get_args(OperatorMessage))
OBSERVATION: Codec[ObservationMessage] = Codec(*get_args(ObservationMessage))
