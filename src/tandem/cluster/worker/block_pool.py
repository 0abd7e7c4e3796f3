"""The block pool of a worker: each KV block is free, owned by sequences, or cached under its hash.
Deals in numbers, never bytes.

A freed block keeps its content and hash until it is handed out again, so the free list, oldest
first, is the LRU of the prefix cache. Sharing a block is one more owner, never a copy. Blocks of a
session that pauses leave the LRU, and go by when the session is expected back (`SessionBlocks`).
The last block of a sequence, which is partly filled, is kept as well, for one that goes on from
there (`Tails`).
"""

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import takewhile
from typing import TypeAlias

from tandem.cluster.audit import invariant
from tandem.cluster.worker.session_blocks import SessionBlocks
from tandem.facts.blocks import BlockChanges
from tandem.policy.eviction.next_use import ahead_of_return_ns, ahead_of_unused_ns

Tokens: TypeAlias = Sequence[int]


class Tails:
    """Partly filled blocks that nobody owns, by the hash of the block before (or the root): tokens
    of the only one behind each. Whoever goes on from there takes the block over, so it is never
    shared and never copied."""

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[int, Tokens]] = {}
        self._parent_of: dict[int, bytes] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._parent_of

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, parent: bytes, block: int, tokens: Tokens) -> int | None:
        """The block holds the KV of `tokens`, the first behind `parent`. Gives the block that was
        kept there before."""
        replaced = self._held.get(parent)
        if replaced is not None:
            del self._parent_of[replaced[0]]
        self._held[parent] = block, tokens
        self._parent_of[block] = parent
        return None if replaced is None else replaced[0]

    def shared_tokens(self, parent: bytes, tokens: Tokens) -> int:
        """With how many of `tokens` the block behind `parent` begins; 0 where most of what it holds
        follows something else: whoever that was may come back."""
        held = self._held.get(parent)
        if held is None:
            return 0
        alike = zip(held[1], tokens, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], alike))
        return shared if 2 * shared >= len(held[1]) else 0

    def take(self, parent: bytes) -> int:
        """The block behind `parent`, which is kept no more."""
        block, _ = self._held.pop(parent)
        del self._parent_of[block]
        return block

    def forget(self, block: int) -> None:
        """What was in the block is gone."""
        if (parent := self._parent_of.pop(block, None)) is not None:
            del self._held[parent]

    def forget_all(self) -> None:
        self._held.clear()
        self._parent_of.clear()

    def audit(self, unowned: set[int]) -> None:
        """Assert that nobody owns what is kept."""
        kept = {block: parent for parent, (block, _) in self._held.items()}
        invariant(kept == self._parent_of, "each tail is behind one block")
        invariant(kept.keys() <= unowned, "nobody owns a tail")


class BlockPool:
    """`block_count` blocks, numbered from 0. Every block is free or has at least one owner; only
    full, confirmed blocks have a hash, and a hash belongs to at most one block. `versions[b]`
    counts how often block b was handed out: under one number it never holds two contents. `now_ns`
    is the instant of the event that is being handled."""

    def __init__(self, block_count: int) -> None:
        assert block_count > 0
        self.block_count = block_count
        self.now_ns = 0
        self.sessions = SessionBlocks()
        self.tails = Tails()
        # Since when each is free.
        self._free: OrderedDict[int, int] = OrderedDict.fromkeys(range(block_count), 0)
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
        return len(self._free) + self.sessions.idle_blocks

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
        return self.free_blocks - unowned - new_blocks

    def fits_without(
        self, leaving: Sequence[Sequence[int]], cached: Sequence[int], new_blocks: int
    ) -> int:
        """As `fits`, if the owners of these block tables had left."""
        owners = Counter(block for blocks in leaving for block in blocks)
        freed = sum(1 for block, count in owners.items() if self._owners[block] == count)
        # A cached block that only the leaving own is freed and taken again.
        retaken = sum(1 for block in cached if 0 < self._owners[block] == owners[block])
        return self.fits(cached, new_blocks) + freed - retaken

    def share(self, blocks: Sequence[int], session: bytes = b"") -> None:
        """One more owner, a request of this session, for each of these cached blocks."""
        sessions = self.sessions if self.sessions.private else None
        for block in blocks:
            if not self._owners[block] and (sessions is None or not sessions.wake(block)):
                del self._free[block]
            self._owners[block] += 1
            if sessions is not None:
                sessions.shared(block, session)

    def allocate(self) -> int:
        """Hand out the least recently used free block, or one of a paused session that is wanted
        later still; its old content is forgotten.

        The caller has checked that there is one.
        """
        if not self.sessions.private:
            block, _ = self._free.popitem(last=False)
            return self._hand_out(block)
        block, _ = self._last_wanted()
        if self._free.pop(block, None) is None:
            self.sessions.wake(block)
        self.sessions.evicted(block)
        return self._hand_out(block)

    def allocate_from_later(self, return_ns: int) -> int | None:
        """As `allocate`, for content that is wanted at `return_ns`: None where whatever is free
        holds what is expected to be used before."""
        if not self.free_blocks:
            return None
        _, ahead_ns = self._last_wanted()
        if ahead_ns is not None and ahead_ns <= ahead_of_return_ns(return_ns, self.now_ns):
            return None
        return self.allocate()

    def pause(self, session: bytes, return_ns: int) -> None:
        """What only this session uses is wanted again at `return_ns`."""
        # The tail of the chain goes first, as in `release`.
        for block in reversed(self.sessions.pause(session, return_ns)):
            if block in self._free:
                del self._free[block]
                self.sessions.rest(block)

    def resume(self, session: bytes) -> None:
        """The session is back: its blocks are the most recently used."""
        for block in self.sessions.resume(session):
            self._free[block] = self.now_ns

    def _last_wanted(self) -> tuple[int, int | None]:
        """The free block whose next use is expected last, and how far ahead; None: it holds nothing
        that could be used."""
        idle = self.sessions.last_wanted(self.now_ns)
        if not self._free:
            assert idle is not None
            return idle
        block, free_ns = next(iter(self._free.items()))
        if self._hash_of[block] is None and block not in self.tails:
            return block, None
        ahead_ns = ahead_of_unused_ns(self.now_ns - free_ns)
        return idle if idle is not None and idle[1] > ahead_ns else (block, ahead_ns)

    def _hand_out(self, block: int) -> int:
        digest = self._hash_of[block]
        if digest is not None:
            self._hash_of[block] = None
            del self._block_of[digest]
            self._removed.append(digest)
        else:
            self.tails.forget(block)
        self._owners[block] = 1
        self.versions[block] += 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """One owner less for each block of a sequence, given in the sequence's order.

        The tail is freed first: the start of a prompt is what others share. Blocks without a hash
        that are no tail can never be hit again and go to the front of the list.
        """
        owned, now_ns = self._owners, self.now_ns
        sessions = self.sessions if self.sessions.private else None
        for block in reversed(blocks):
            owned[block] = owners = owned[block] - 1
            if owners:
                assert owners > 0
                continue
            if sessions is not None and sessions.rest(block):
                continue
            self._free[block] = now_ns
            if self._hash_of[block] is None and block not in self.tails:
                self._free.move_to_end(block, last=False)

    def keep_tail(self, block: int, parent: bytes, tokens: Tokens) -> None:
        """The last block of a sequence, which is its only owner and about to release it, holds the
        KV of `tokens`, the first behind the block `parent` (or the root)."""
        assert self._owners[block] == 1
        assert self._hash_of[block] is None
        replaced = self.tails.keep(parent, block, tokens)
        if replaced is not None:
            self._free.move_to_end(replaced, last=False)

    def take_tail(self, parent: bytes, tokens: Tokens) -> tuple[int, int] | None:
        """The block behind `parent` that begins with some of `tokens`, and with how many; from now
        on it is the caller's, who fills it further. None where there is none."""
        shared_tokens = self.tails.shared_tokens(parent, tokens)
        if not shared_tokens:
            return None
        block = self.tails.take(parent)
        del self._free[block]
        return self._hand_out(block), shared_tokens

    def commit(self, block: int, digest: bytes, parent: bytes, session: bytes = b"") -> bool:
        """An owned block is full and its KV computed: from now on others may share it. Whether its
        content is new here. It was filled by a request of this session (empty: of none).

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
        if session:
            self.sessions.committed(block, session)
        return True

    def reset(self) -> None:
        """Forget all cached content. What sequences own stays theirs, and is shared no more."""
        self._free.update(dict.fromkeys(self.sessions.forget_all(), self.now_ns))
        for digest, block in self._block_of.items():
            self._hash_of[block] = None
            self._removed.append(digest)
        self._block_of.clear()
        self.tails.forget_all()

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
        idle = {block for block in unowned if block not in self._free}
        invariant(len(idle) == self.sessions.idle_blocks, "nobody owns what is free or idle")
        invariant(unowned == idle | set(self._free), "the free list holds what nobody owns")
        self.sessions.audit(idle)
        self.tails.audit(set(self._free))
        hashed = {digest: block for block, digest in enumerate(self._hash_of) if digest is not None}
        invariant(hashed == self._block_of, "the prefix cache names blocks by their hashes")
