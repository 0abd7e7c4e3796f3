"""What is stored beside the bytes of a block off the device: a header that names them and shows
that they are whole, and a message authentication code that binds them to their name and format.

The header is bound to the format of the block and to the place where it lies by a keyed hash, so
that nothing torn, moved or written by somebody else is taken for one.

Whoever computed a block tags it, and whoever fetches it looks: nobody between them, a process of
the shared pool or a server behind it, can put another or a changed block in its place without the
secret of the cluster. A checksum cannot do that: it finds accidents, and whoever wants to finds
other bytes with the same one. A tag is blake2b, keyed, over the name and the keyed sums of the
bytes (`kernels.transfer`): a universal hash under a pseudo-random function, as in UMAC and VMAC,
because blake2b over all bytes is slower than the network.
"""

import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np

from tandem.facts.kv import BlockFormat, BlockName
from tandem.kernels.transfer import KEY_WORDS, Transfer
from tandem.kv.tiers.contract import Row
from tandem.kv.tiers.rows import RowCopies

TAG_BYTES: Final = 16
_KEY_BYTES: Final = 32
_WORDS_AT_ONCE: Final = 8
_ROOT_BYTES: Final = 16
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
        self._key = blake2b(text, key=secret, digest_size=32).digest()

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
        return blake2b(fields, digest_size=HASH_BYTES, key=self._key).digest()


class BlockTags:
    """Of blocks of one format, in the cluster with this secret. Another secret, format or version
    of the tags gives others."""

    def __init__(self, secret: bytes, block_format: BlockFormat, transfer: Transfer) -> None:
        text = b"tandem kv tags 1 %d " % block_format.block_bytes + block_format.root
        self._seed = blake2b(text, key=blake2b(secret).digest(), digest_size=_KEY_BYTES).digest()
        self.block_bytes = block_format.block_bytes
        self._key = self.derived(b"names and sums")
        words = b"".join(
            self.derived(b"sums %d" % index, 8 * _WORDS_AT_ONCE)
            for index in range(KEY_WORDS // _WORDS_AT_ONCE)
        )
        self._sum_key = np.frombuffer(words, dtype="<u8").astype(np.uint64)
        # What was tagged otherwise is another format: not found, rather than found unfit. This root
        # is no secret.
        root = self.derived(b"tagged", _ROOT_BYTES)
        self.stored = BlockFormat(root, block_format.block_bytes + TAG_BYTES)
        self._transfer = transfer
        self._rows = RowCopies(transfer, block_format.block_bytes)

    def derived(self, purpose: bytes, count: int = _KEY_BYTES) -> bytes:
        """A key for something else, of `count` bytes, up to 64."""
        return blake2b(purpose, key=self._seed, digest_size=count).digest()

    def of(self, names: Sequence[BlockName], rows: Sequence[Row]) -> list[bytes]:
        """The tag of each; a row holds the bytes of the block alone."""
        if not names:
            return []
        addresses = self._rows.addresses(rows)
        first = int(addresses.min())
        sums = self._transfer.sum_runs(
            first, addresses - first, self.block_bytes, key=self._sum_key
        ).astype("<u8", copy=False)
        return [
            blake2b(
                bytes([len(name.digest)]) + name.digest + sums[index].tobytes(),
                key=self._key,
                digest_size=TAG_BYTES,
            ).digest()
            for index, name in enumerate(names)
        ]

    def misfits(
        self, names: Sequence[BlockName], rows: Sequence[Row], tags: Sequence[bytes | memoryview]
    ) -> list[int]:
        """Which rows are not what their names and tags claim."""
        found = zip(self.of(names, rows), tags, strict=True)
        return [i for i, (own, tag) in enumerate(found) if not hmac.compare_digest(own, tag)]

    def stored_misfits(self, names: Sequence[BlockName], rows: Sequence[Row]) -> list[int]:
        """The same of blocks with their tags behind them (`stored`)."""
        tags = [row[self.block_bytes :].data for row in rows]
        return self.misfits(names, [row[: self.block_bytes] for row in rows], tags)
