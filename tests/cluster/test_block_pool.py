"""Laws of the block pool: blocks are conserved, and its reports are exactly what is cached."""

from copy import deepcopy

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandem.cluster.worker.block_pool import BlockPool

BLOCKS = 6


class PoolLaws(RuleBasedStateMachine):
    """Sequences of blocks come, grow, are sealed, shared and go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.tables: list[list[int]] = []
        self.full: dict[int, bytes] = {}
        self.reported: set[bytes] = set()
        self.sequence_number = 0

    @precondition(lambda self: self.pool.free_blocks)
    @rule(grow=st.booleans(), data=st.data())
    def allocate(self, grow, data):
        block = self.pool.allocate()
        self.full.pop(block, None)
        if grow and self.tables:
            data.draw(st.sampled_from(self.tables)).append(block)
        else:
            self.tables.append([block])

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), digest=st.integers(0, 9).map(lambda n: bytes([n])))
    def seal(self, data, digest):
        table = data.draw(st.sampled_from(self.tables))
        unsealed = [block for block in table if block not in self.full]
        if unsealed:
            duplicate = digest in self.full.values()
            self.pool.commit(unsealed[0], digest, b"parent")
            if not duplicate:
                self.full[unsealed[0]] = digest

    @rule(digests=st.lists(st.integers(0, 9).map(lambda n: bytes([n])), max_size=3, unique=True))
    def share(self, digests):
        cached = self.pool.cached_prefix(digests)
        by_digest = {digest: block for block, digest in self.full.items()}
        expected = []
        for digest in digests:
            if digest not in by_digest:
                break
            expected.append(by_digest[digest])
        assert cached == expected
        if cached:
            before = self.pool.free_blocks
            after = self.pool.fits(cached, 0)
            self.pool.share(cached)
            assert self.pool.free_blocks == after <= before
            self.tables.append(cached)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        table = data.draw(st.sampled_from(self.tables))
        self.tables.remove(table)
        self.pool.release(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), digests=st.lists(st.integers(0, 9).map(lambda n: bytes([n]))))
    def foresee(self, data, digests):
        """What would fit if some left is what fits when they have left."""
        leaving = data.draw(st.lists(st.sampled_from(self.tables), unique_by=id))
        cached = self.pool.cached_prefix(list(dict.fromkeys(digests)))
        foreseen = self.pool.fits_without(leaving, cached, 1)
        later = deepcopy(self.pool)
        for table in leaving:
            later.release(table)
        assert foreseen == later.fits(cached, 1)

    @rule()
    def listen(self):
        changes = self.pool.take_changes()
        if changes:
            assert changes.sequence_number == self.sequence_number
            self.sequence_number += 1
            assert not set(changes.removed) & set(changes.stored)
            self.reported = (self.reported - set(changes.removed)) | set(changes.stored)
        assert self.reported == set(self.full.values())

    @invariant()
    def every_block_is_accounted_for(self):
        self.pool.audit(self.tables)
        assert self.pool.cached_blocks == len(self.full)


TestPoolLaws = PoolLaws.TestCase


def test_the_least_recently_freed_content_is_forgotten_first_and_prompts_from_the_tail():
    pool = BlockPool(4)
    first = [pool.allocate(), pool.allocate()]
    second = [pool.allocate(), pool.allocate()]
    for number, block in enumerate(first + second):
        pool.commit(block, bytes([number]), b"")
    pool.release(first)
    pool.release(second)
    forgotten = []
    for _ in range(4):
        pool.allocate()
        changes = pool.take_changes()
        assert changes
        forgotten += changes.removed
    assert forgotten == [b"\x01", b"\x00", b"\x03", b"\x02"]


def test_blocks_without_content_are_used_before_any_cache_is_lost():
    pool = BlockPool(3)
    kept, scrap = pool.allocate(), pool.allocate()
    pool.commit(kept, b"kept", b"")
    pool.release([kept])
    pool.release([scrap])
    pool.allocate()
    pool.allocate()
    assert pool.holds(b"kept")


def test_a_block_is_handed_out_under_a_new_generation_each_time():
    pool = BlockPool(2)
    first = pool.allocate()
    assert pool.versions[first] == 1
    pool.share([first])
    assert pool.versions[first] == 1
    pool.release([first])
    pool.release([first])
    assert [pool.allocate(), pool.allocate()].count(first) == 1
    assert pool.versions[first] == 2


def test_a_likely_prefix_is_as_long_as_the_one_that_is_shared():
    pool, chain = BlockPool(16), [bytes([number]) for number in range(12)]
    for held in range(len(chain) + 1):
        assert pool.likely_prefix_blocks(chain) == len(pool.cached_prefix(chain)) == held
        if held < len(chain):
            pool.commit(pool.allocate(), chain[held], b"root")
