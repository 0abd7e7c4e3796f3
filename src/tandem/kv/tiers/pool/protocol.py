"""The protocol between a client and a process of the shared pool, byte by byte, once both have
proved themselves.

OFFER names, and learn which of them are wanted; send those as DATA, several frames if they are
many; GET names, and get those of them that are there, from the first on. A block never travels
without the tag that binds it to its name, and that only the cluster can make (`BlockTags`). Pure:
no socket, no chance.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Final

from tandem.facts.blocks import HASH_BYTES
from tandem.facts.kv import BlockFormat, BlockName
from tandem.kv.connectors.tcp.protocol import INCARNATION_BYTES, BadFrame

MAGIC: Final = b"tandemP2"
OFFER_NAMES: Final = 1024
# Of the blocks in one frame; a block that is larger travels alone.
BATCH_BYTES: Final = 4 << 20
TENANTS: Final = 256
TENANT_BYTES: Final = 256
_HEAD: Final = struct.Struct("<8sBxHII16sQ")
_REPLY: Final = struct.Struct("<8sB3xI")
_NAME: Final = struct.Struct("<16s16s16sH")
_LENGTH: Final = struct.Struct("<H")
HEAD_BYTES: Final = _HEAD.size
REPLY_BYTES: Final = _REPLY.size


class Verb(IntEnum):
    """DATA carries what an OFFER before it on the same connection was answered to be wanted, in
    that order."""

    OFFER = 1
    DATA = 2
    GET = 3


class Verdict(IntEnum):
    """On one block that was offered or sent. UNWANTED: there is no room, or somebody else is just
    sending it."""

    UNWANTED = 0
    WANTED = 1
    HELD = 2
    CORRUPT = 3


class Status(IntEnum):
    OK = 0
    OTHER_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Head:
    """Begins a request: `count` blocks. `names_bytes` of names follow, or with DATA the blocks. The
    format is that in which they are stored: each with its tag behind it."""

    verb: Verb
    count: int
    names_bytes: int
    tenants: int
    format: BlockFormat


def incarnation_proof(incarnation: str) -> bytes:
    """The start of a pool process as both sides prove it. Nobody's who serves anything else."""
    return blake2b(MAGIC + incarnation.encode(), digest_size=INCARNATION_BYTES).digest()


def batch_blocks(block_bytes: int) -> int:
    """So many blocks are in one frame at most."""
    return max(1, min(OFFER_NAMES, BATCH_BYTES // block_bytes))


def request(verb: Verb, block_format: BlockFormat, names: Sequence[BlockName]) -> bytes:
    """An OFFER or GET. At most `OFFER_NAMES` names, and `batch_blocks` of a GET."""
    tenants: dict[str, int] = {}
    rows = [
        _NAME.pack(
            name.digest, name.parent, name.first, tenants.setdefault(name.tenant, len(tenants))
        )
        for name in names
    ]
    words = [tenant.encode() for tenant in tenants]
    body = b"".join(rows) + b"".join(_LENGTH.pack(len(word)) + word for word in words)
    return _head(Head(verb, len(names), len(body), len(words), block_format)) + body


def data_frame(block_format: BlockFormat, count: int) -> bytes:
    """Begins DATA: as many blocks follow."""
    return _head(Head(Verb.DATA, count, 0, 0, block_format))


def nameable(name: BlockName) -> bool:
    """Whether a name fits into a request."""
    digests = (name.digest, name.parent, name.first)
    return all(len(digest) == HASH_BYTES for digest in digests) and (
        len(name.tenant.encode()) <= TENANT_BYTES
    )


def parse_head(data: bytes) -> Head:
    """Raises `BadFrame`."""
    magic, verb, tenants, count, names_bytes, root, block_bytes = _HEAD.unpack(data)
    if magic != MAGIC:
        raise BadFrame("no request of a client of the shared pool")
    if verb not in (Verb.OFFER, Verb.DATA, Verb.GET) or not 0 < block_bytes < 1 << 40:
        raise BadFrame(f"a request of kind {verb} for blocks of {block_bytes} bytes")
    most = OFFER_NAMES if verb == Verb.OFFER else batch_blocks(block_bytes)
    if not 0 < count <= most:
        raise BadFrame(f"a request for {count} blocks")
    if verb == Verb.DATA:
        fits = names_bytes == tenants == 0
    else:
        words_bytes = names_bytes - count * _NAME.size
        fits = 0 < tenants <= min(TENANTS, count)
        fits &= 0 <= words_bytes - tenants * _LENGTH.size <= tenants * TENANT_BYTES
    if not fits:
        raise BadFrame(f"{count} names of {tenants} tenants in {names_bytes} bytes")
    return Head(Verb(verb), count, names_bytes, tenants, BlockFormat(root, block_bytes))


def parse_names(head: Head, body: bytes) -> tuple[BlockName, ...]:
    """The names of an OFFER or GET. Raises `BadFrame`."""
    rows = head.count * _NAME.size
    tenants = _parse_tenants(body[rows:], head.tenants)
    names = tuple(
        BlockName(digest, parent, first, tenants[index] if index < len(tenants) else _no_tenant())
        for digest, parent, first, index in _NAME.iter_unpack(body[:rows])
    )
    if len({name.digest for name in names}) < len(names):
        raise BadFrame("the same name twice")
    return names


def reply(count: int, status: Status = Status.OK) -> bytes:
    """Begins an answer: as many verdicts follow, or (GET) blocks."""
    return _REPLY.pack(MAGIC, status, count)


def parse_reply(data: bytes, most: int) -> int:
    """The count. Raises `BadFrame` when there are more than `most`, or the formats differ."""
    magic, status, count = _REPLY.unpack(data)
    if status == Status.OTHER_FORMAT:
        raise BadFrame("it keeps blocks of another model, layout or precision")
    if magic != MAGIC or status != Status.OK or count > most:
        raise BadFrame("an answer to another question")
    return int(count)


def parse_verdicts(data: bytes) -> tuple[Verdict, ...]:
    """Raises `BadFrame`."""
    if any(byte > Verdict.CORRUPT for byte in data):
        raise BadFrame("a verdict that is none")
    return tuple(Verdict(byte) for byte in data)


def _head(head: Head) -> bytes:
    return _HEAD.pack(
        MAGIC,
        head.verb,
        head.tenants,
        head.count,
        head.names_bytes,
        head.format.root,
        head.format.block_bytes,
    )


def _parse_tenants(words: bytes, count: int) -> list[str]:
    tenants: list[str] = []
    at = 0
    for _ in range(count):
        if at + _LENGTH.size > len(words):
            raise BadFrame("tenants that are cut off")
        (length,) = _LENGTH.unpack_from(words, at)
        at += _LENGTH.size
        word = words[at : at + length]
        at += length
        if length > TENANT_BYTES or len(word) < length:
            raise BadFrame("a tenant that is cut off")
        try:
            tenants.append(word.decode())
        except UnicodeDecodeError as error:
            raise BadFrame("a tenant that is no text") from error
    if at != len(words):
        raise BadFrame("more than the head has it")
    return tenants


def _no_tenant() -> str:
    raise BadFrame("a block of a tenant that is not there")
