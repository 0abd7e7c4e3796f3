"""Message authentication codes that bind the bytes of a block to its name and its format.

Whoever computed a block tags it, and whoever fetches it looks: nobody between them, a process of
the shared pool or a server behind it, can put another or a changed block in its place without the
secret of the cluster. A checksum cannot do that: it finds accidents, and whoever wants to finds
other bytes with the same one.

A tag is blake2b, keyed, over the name and the keyed sums of the bytes (`kernels.transfer`): a
universal hash under a pseudo-random function, as in UMAC and VMAC, because blake2b over all bytes
is slower than the network.
"""

import hmac
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import numpy as np

from tandem.facts.kv_tiers import BlockFormat, BlockName
from tandem.kernels.transfer.contract import KEY_WORDS, Transfer
from tandem.kv.tiers.contract import Row
from tandem.kv.tiers.memory import RowCopies

TAG_BYTES: Final = 16
_KEY_BYTES: Final = 32
_WORDS_AT_ONCE: Final = 8
_ROOT_BYTES: Final = 16


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
        """Which rows are not what their names and tags say."""
        found = zip(self.of(names, rows), tags, strict=True)
        return [i for i, (own, tag) in enumerate(found) if not hmac.compare_digest(own, tag)]

    def stored_misfits(self, names: Sequence[BlockName], rows: Sequence[Row]) -> list[int]:
        """The same of blocks with their tags behind them (`stored`)."""
        tags = [row[self.block_bytes :].data for row in rows]
        return self.misfits(names, [row[: self.block_bytes] for row in rows], tags)
