"""The host memory tier: blocks in the memory of the host, with their checksums."""

from collections.abc import Sequence

import numpy as np

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv import BlockFormat, BlockName
from tandem.kernels.transfer import Transfer
from tandem.kv.region import Warming
from tandem.kv.tiers.contract import Found, Kept, Row
from tandem.kv.tiers.rows import Addresses, RowCopies, allocated_rows, leading_slots


class HostStore:
    """Checksums are computed and compared in the pass that copies the bytes."""

    def __init__(self, format: BlockFormat, blocks: int, transfer: Transfer) -> None:
        """Room for `blocks`, of which some should be spare: a block that was evicted keeps its
        place until it is forgotten. Raises `InvalidConfiguration` without so much memory."""
        assert blocks > 0
        try:
            self._rows = allocated_rows(blocks, format.block_bytes)
        except (OSError, MemoryError, ValueError, OverflowError) as error:
            size_gib = blocks * format.block_bytes / 2**30
            raise InvalidConfiguration(
                f"tiers.host: {size_gib:,.1f} GiB of memory cannot be had ({error}); "
                "choose a smaller capacity"
            ) from error
        self._copies = RowCopies(transfer, format.block_bytes)
        self._checksums = np.zeros(blocks, dtype=np.uint64)
        self._slots: dict[bytes, int] = {}
        self._warming: Warming | None = None
        self._free = list(range(blocks - 1, -1, -1))

    def warm(self) -> None:
        """Have pages made for all of it in the background: one made at the first touch costs the
        first write ten times a copy. At most once."""
        assert self._warming is None
        self._warming = Warming(self._rows.ctypes.data, len(self._rows) * self._rows.strides[0])

    def put_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Kept:
        new = {
            name.digest: row
            for name, row in zip(names, rows, strict=True)
            if name.digest not in self._slots
        }
        digests = list(new)[: len(self._free)]
        slots = [self._free.pop() for _ in digests]
        sources = self._copies.addresses([new[digest] for digest in digests])
        self._checksums[slots] = self._copies.copy_at(sources, self._addresses(slots))
        self._slots.update(zip(digests, slots, strict=True))
        kept = tuple(name.digest for name in names if name.digest in self._slots)
        return Kept(kept, "" if len(digests) == len(new) else "no room is left in host memory")

    def get_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Found:
        slots, missing = leading_slots(names, self._slots)
        places = self._copies.addresses(rows[: len(slots)])
        checksums = self._copies.copy_at(self._addresses(slots), places)
        unlike = np.flatnonzero(checksums != self._checksums[slots]).tolist()
        if not unlike:
            return Found(len(slots), missing=missing)
        corrupt = tuple(dict.fromkeys(names[index].digest for index in unlike))
        self.forget_blocks(corrupt)
        return Found(unlike[0], corrupt=corrupt)

    def forget_blocks(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            slot = self._slots.pop(digest, None)
            if slot is not None:
                self._free.append(slot)

    def stored_blocks(self) -> tuple[BlockName, ...]:
        """Memory does not outlive its process."""
        return ()

    def close_store(self) -> None:
        """The memory goes with the store."""
        if self._warming:
            self._warming.stop_warming()
        self._slots.clear()
        self._free.clear()

    def _addresses(self, slots: Sequence[int]) -> Addresses:
        first, stride = self._rows.ctypes.data, self._rows.strides[0]
        return first + np.array(slots, dtype=np.int64) * stride
