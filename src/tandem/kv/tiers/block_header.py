"""What stands before a block's bytes where they outlive the process: whose they are, and how to
tell that they are whole.

The header is bound to the format of the block and to the place where it lies by a keyed hash, so
that nothing torn, moved or written by somebody else is taken for one.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

from tandem.facts.kv_tiers import BlockFormat, BlockName

HEADER_BYTES: Final = 256
EMPTY: Final = bytes(HEADER_BYTES)
HASH_BYTES: Final = 8
_MOST_DIGEST_BYTES: Final = 32
_MOST_TENANT_BYTES: Final = 128
# sequence, checksum, place; lengths of digest, parent, first, tenant; these.
_FIELDS: Final = struct.Struct("<QQI4B32s32s32s128s")
assert HASH_BYTES + _FIELDS.size == HEADER_BYTES


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """`checksum` is that of the bytes, never 0. Blocks with a smaller `sequence` were stored
    earlier."""

    name: BlockName
    checksum: int
    sequence: int


class HeaderCodec:
    """Headers of blocks of one format."""

    def __init__(self, format: BlockFormat, secret: bytes = b"") -> None:
        """With a `secret` (of up to 64 bytes) nobody else can make them."""
        text = b"tandem kv block 1 %d " % format.block_bytes + format.root
        self._key = hashlib.blake2b(text, key=secret, digest_size=32).digest()

    def problem(self, name: BlockName) -> str:
        """Why there can be no header for it; empty when there can."""
        if max(len(name.digest), len(name.parent), len(name.first)) > _MOST_DIGEST_BYTES:
            return f"a digest is longer than {_MOST_DIGEST_BYTES} bytes"
        if len(name.tenant.encode()) > _MOST_TENANT_BYTES:
            return f"the name of a tenant is longer than {_MOST_TENANT_BYTES} bytes"
        return ""

    def packed(self, header: BlockHeader, place: int = 0) -> bytes:
        name = header.name
        texts = (name.digest, name.parent, name.first, name.tenant.encode())
        fields = _FIELDS.pack(
            header.sequence, header.checksum, place, *(len(text) for text in texts), *texts
        )
        return self.hash(fields) + fields

    def unpacked(self, raw: bytes, place: int = 0) -> BlockHeader | None:
        """None where no header for that place is."""
        if len(raw) != HEADER_BYTES or self.hash(raw[HASH_BYTES:]) != raw[:HASH_BYTES]:
            return None
        sequence, checksum, found, *rest = _FIELDS.unpack_from(raw, HASH_BYTES)
        if found != place:
            return None
        digest, parent, first, tenant = (
            text[:length] for length, text in zip(rest[:4], rest[4:], strict=True)
        )
        return BlockHeader(BlockName(digest, parent, first, tenant.decode()), checksum, sequence)

    def hash(self, fields: bytes) -> bytes:
        """What only this format gives for them."""
        return hashlib.blake2b(fields, digest_size=HASH_BYTES, key=self._key).digest()
