"""The codec: messages to bytes and back, with every malformed input refused as `BadMessage`.

One byte for the protocol, one for the type, then msgpack. Whatever is not exactly a message of a
known type is `BadMessage`, never anything else. Knows no socket, and no meaning of a message.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, get_args

import msgspec

from tandem.facts.errors import TandemError
from tandem.messages.checks import check
from tandem.messages.cluster import PROTOCOL, ToGateway, ToWorker
from tandem.messages.encoded import REQUEST_FORMS, BadMessage, Form, OtherProtocol
from tandem.messages.operator import OperatorMessage

M = TypeVar("M")

MESSAGE_LIMIT_BYTES = 64 << 20
HEAD_BYTES = 2
# What msgspec, the forms and the dataclasses themselves say of bytes or values that cannot be.
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
        forms: Mapping[type, Form] | None = None,
        protocol: int = PROTOCOL,
    ) -> None:
        forms = forms or {}
        self._protocol = protocol
        self._encoder = msgspec.msgpack.Encoder()
        self._numbers = {kind: number for number, kind in enumerate(message_types)}
        self._folds = {kind: forms[kind].fold for kind in message_types if kind in forms}
        self._readers = [_reader(kind, forms.get(kind)) for kind in message_types]

    def encode(self, message: M, *, protocol: int | None = None) -> bytes:
        """The bytes of a message. Another `protocol` is for telling a stranger to go away."""
        kind = type(message)
        head = bytes((self._protocol if protocol is None else protocol, self._numbers[kind]))
        fold = self._folds.get(kind)
        return head + self._encoder.encode(fold(message) if fold else message)

    def decode(self, data: bytes) -> M:
        """The message in these bytes. Raises `BadMessage`."""
        if not HEAD_BYTES <= len(data) <= MESSAGE_LIMIT_BYTES:
            raise BadMessage(f"has {len(data)} bytes")
        if data[0] != self._protocol:
            raise OtherProtocol(data[0], self._protocol)
        if data[1] >= len(self._readers):
            raise BadMessage(f"is of the unknown type {data[1]}")
        try:
            message: M = self._readers[data[1]](memoryview(data)[HEAD_BYTES:])
            check(message)
        except BadMessage:
            raise
        except _REFUSALS as error:
            raise BadMessage(f"cannot be read: {_short(error)}") from error
        return message


def _reader(kind: type, form: Form | None) -> Callable[[memoryview], Any]:
    if form is None:
        return msgspec.msgpack.Decoder(kind).decode
    decode: Callable[[memoryview], Any] = msgspec.msgpack.Decoder(form.kind).decode
    unfold = form.unfold
    return lambda data: unfold(decode(data))


def _short(error: Exception) -> str:
    return str(error)[:200]


TO_GATEWAY: Codec[ToGateway] = Codec(*get_args(ToGateway))
TO_WORKER: Codec[ToWorker] = Codec(*get_args(ToWorker), forms=REQUEST_FORMS)
OPERATOR: Codec[OperatorMessage] = Codec(*get_args(OperatorMessage))
