"""The protocol between a client and a server of KV bytes, byte by byte.

First each proves to the other that it knows the secret of the cluster, and the client that it means
this very start of the server's process. Then the client asks for pieces of the server's memory;
many bytes follow few. Pure: no socket, no chance.
"""

import hmac
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tandem.kv.connectors.contract import ConnectorError, outside

MAGIC: Final = b"tandemK1"
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
INCARNATION_BYTES: Final = 16
GREETING_BYTES: Final = len(MAGIC) + NONCE_BYTES
ANSWER_BYTES: Final = len(MAGIC) + NONCE_BYTES + PROOF_BYTES

# Of one request: its table must fit into the smallest socket buffers even when two are under way
# and nobody reads.
FRAME_SPANS: Final = 1024
FRAME_BYTES: Final = 4 << 20
# The one kind of request: the server sends the bytes. Nobody writes to the memory of another.
_READ: Final = 1
_HEAD: Final = struct.Struct("<B3xIQ")
_REPLY: Final = struct.Struct("<8sQ")
HEAD_BYTES: Final = _HEAD.size
REPLY_BYTES: Final = _REPLY.size


class BadFrame(ConnectorError):
    """The other side does not keep to the protocol."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What both sides must know of: the cluster's secret, and the start of the server's process
    that is meant."""

    cluster: bytes
    incarnation: bytes

    def __repr__(self) -> str:
        return "Credentials(...)"

    def proof(self, side: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
        """Only who knows the secret can make it, for these two nonces and that side."""
        text = MAGIC + side + self.incarnation + server_nonce + client_nonce
        return hmac.digest(self.cluster, text, "sha256")


def greeting(server_nonce: bytes) -> bytes:
    return MAGIC + server_nonce


def parse_greeting(data: bytes) -> bytes:
    """The server's nonce."""
    if not data.startswith(MAGIC):
        raise BadFrame("something else answers on this port")
    return data[len(MAGIC) :]


def answer(credentials: Credentials, server_nonce: bytes, client_nonce: bytes) -> bytes:
    return MAGIC + client_nonce + credentials.proof(b"client", server_nonce, client_nonce)


def check_answer(credentials: Credentials, server_nonce: bytes, data: bytes) -> bytes:
    """The server's own proof, when the client's is good."""
    client_nonce, proof = data[len(MAGIC) : -PROOF_BYTES], data[-PROOF_BYTES:]
    expected = credentials.proof(b"client", server_nonce, client_nonce)
    if not data.startswith(MAGIC) or not hmac.compare_digest(proof, expected):
        raise BadFrame("the client does not know the secret")
    return credentials.proof(b"server", server_nonce, client_nonce)


def check_proof(
    credentials: Credentials, server_nonce: bytes, client_nonce: bytes, data: bytes
) -> None:
    expected = credentials.proof(b"server", server_nonce, client_nonce)
    if not hmac.compare_digest(data, expected):
        raise BadFrame("the server does not know the secret")


def request(offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> bytes:
    table = np.stack([offsets, lengths], axis=1).astype("<i8").tobytes()
    return _HEAD.pack(_READ, len(offsets), int(lengths.sum())) + table


def parse_head(data: bytes) -> int:
    """How many bytes of table follow the head of a request."""
    kind, count, total = _HEAD.unpack(data)
    if kind != _READ or not 0 < count <= FRAME_SPANS:
        raise BadFrame(f"a request of kind {kind} for {count} spans")
    if not 0 < total <= FRAME_BYTES:
        raise BadFrame(f"a request for {total} bytes")
    return int(count) * 16


def parse_table(
    head: bytes, table: bytes, region_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets and lengths, all within the region and together as many bytes as in the head."""
    pairs = np.frombuffer(table, dtype="<i8").reshape(-1, 2)
    offsets, lengths = pairs[:, 0], pairs[:, 1]
    if outside(offsets, lengths, region_bytes):
        raise BadFrame("a span outside the region")
    # Each is at most the region, and there are few: the sum cannot overflow.
    if int(lengths.sum()) != _HEAD.unpack(head)[2]:
        raise BadFrame("spans that are not as long as their head has it")
    return offsets, lengths


def reply(total_bytes: int) -> bytes:
    """Begins the bytes read."""
    return _REPLY.pack(MAGIC, total_bytes)


def check_reply(data: bytes, total_bytes: int) -> None:
    if data != reply(total_bytes):
        raise BadFrame("an answer to another question")
