"""The block pool of a worker: each KV block is free, owned by sequences, or cached under its hash.
Deals in numbers, never bytes.

A freed block keeps its content and hash until it is handed out again, so the free list, oldest
first, is the LRU of the prefix cache. Sharing a block is one more owner, never a copy.
"""

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Sequence

from tandem.cluster.audit import invariant
from tandem.facts.blocks import BlockChanges


class BlockPool:
    """`block_count` blocks, numbered from 0. Every block is free or has at least one owner; only
    full, confirmed blocks have a hash, and a hash belongs to at most one block. `versions[b]`
    counts how often block b was handed out: under one number it never holds two contents."""

    def __init__(self, block_count: int) -> None:
        assert block_count > 0
        self.block_count = block_count
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(block_count))
        self.versions = [0] * block_count
        self._owners = [0] * block_count
        self._hash_of: list[bytes | None] = [None] * block_count
        self._block_of: dict[bytes, int] = {}
        self._removed: list[bytes] = []
        self._stored: list[bytes] = []
        self._stored_parents: list[bytes] = []
        self._sequence_number = 0

    @property
    def free_blocks(self) -> int:
        """Blocks without an owner, whether or not they still hold cached content."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        return len(self._block_of)

    def cached_prefix(self, chain: Sequence[bytes]) -> list[int]:
        """The blocks of the longest prefix of `chain` that the pool holds."""
        blocks: list[int] = []
        for digest in chain:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def likely_prefix_blocks(self, chain: Sequence[bytes]) -> int:
        """How many blocks `cached_prefix` would give, unless one in their middle was forgotten and
        some behind it were not. In logarithmic time: for orders of waiting, not for sharing."""
        return bisect_left(chain, True, key=lambda digest: digest not in self._block_of)

    def holds(self, digest: bytes) -> bool:
        return digest in self._block_of

    def fits(self, cached: Sequence[int], new_blocks: int) -> int:
        """Free blocks that would remain after sharing `cached` and allocating `new_blocks`.

        Negative when they do not fit.
        """
        unowned = sum(1 for block in cached if not self._owners[block])
        return len(self._free) - unowned - new_blocks

    def fits_without(
        self, leaving: Sequence[Sequence[int]], cached: Sequence[int], new_blocks: int
    ) -> int:
        """As `fits`, if the owners of these block tables had left."""
        owners = Counter(block for blocks in leaving for block in blocks)
        freed = sum(1 for block, count in owners.items() if self._owners[block] == count)
        # A cached block that only the leaving own is freed and taken again.
        retaken = sum(1 for block in cached if 0 < self._owners[block] == owners[block])
        return self.fits(cached, new_blocks) + freed - retaken

    def share(self, blocks: Sequence[int]) -> None:
        """One more owner for each of these cached blocks."""
        for block in blocks:
            if not self._owners[block]:
                del self._free[block]
            self._owners[block] += 1

    def allocate(self) -> int:
        """Hand out the least recently used free block; its old content is forgotten.

        The caller has checked that there is one.
        """
        block, _ = self._free.popitem(last=False)
        digest = self._hash_of[block]
        if digest is not None:
            self._hash_of[block] = None
            del self._block_of[digest]
            self._removed.append(digest)
        self._owners[block] = 1
        self.versions[block] += 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """One owner less for each block of a sequence, given in the sequence's order.

        The tail is freed first: the start of a prompt is what others share. Blocks without a hash
        can never be hit again and go to the front of the list.
        """
        owned = self._owners
        for block in reversed(blocks):
            owned[block] = owners = owned[block] - 1
            if owners:
                assert owners > 0
                continue
            self._free[block] = None
            if self._hash_of[block] is None:
                self._free.move_to_end(block, last=False)

    def commit(self, block: int, digest: bytes, parent: bytes) -> bool:
        """An owned block is full and its KV computed: from now on others may share it. Whether its
        content is new here.

        When another block already holds the same content this one stays without a hash: tables
        only ever grow, so duplicates are not merged.
        """
        assert self._owners[block]
        assert self._hash_of[block] is None
        if digest in self._block_of:
            return False
        self._hash_of[block] = digest
        self._block_of[digest] = block
        self._stored.append(digest)
        self._stored_parents.append(parent)
        return True

    def take_changes(self) -> BlockChanges | None:
        """What the pool stored and forgot since the last call; None when nothing."""
        if not self._removed and not self._stored:
            return None
        stored = dict(zip(self._stored, self._stored_parents, strict=True))
        # Evicted and computed anew (or the other way round) between two reports is no change of
        # what the pool holds at its end, which is all that a report must get right.
        removed = tuple([d for d in dict.fromkeys(self._removed) if d not in self._block_of])
        kept = tuple([digest for digest in stored if digest in self._block_of])
        changes = BlockChanges(
            self._sequence_number, removed, kept, tuple([stored[digest] for digest in kept])
        )
        self._sequence_number += 1
        self._removed, self._stored, self._stored_parents = [], [], []
        return changes

    def listing(self) -> tuple[tuple[bytes, ...], int]:
        """All hashes that the reports so far amount to, and the number of the next report. Changes
        that were not taken yet are neither in the one nor before the other."""
        assert not self._removed
        assert not self._stored
        return tuple(self._block_of), self._sequence_number

    def audit(self, owned: Sequence[Sequence[int]]) -> None:
        """Assert that the owners are exactly those of the given block tables, and that free plus
        used is all. For tests and for the auditor."""
        expected = [0] * self.block_count
        for blocks in owned:
            invariant(len(set(blocks)) == len(blocks), "a block table names no block twice")
            for block in blocks:
                expected[block] += 1
        invariant(expected == self._owners, "blocks have the owners that the block tables name")
        unowned = {block for block, owners in enumerate(expected) if not owners}
        invariant(unowned == set(self._free), "the free list holds what nobody owns")
        hashed = {digest: block for block, digest in enumerate(self._hash_of) if digest is not None}
        invariant(hashed == self._block_of, "the prefix cache names blocks by their hashes")
