"""Laws of the block pool: blocks are conserved, and its reports are exactly what is cached."""

from copy import deepcopy

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandem.cluster.worker.block_pool import BlockPool

BLOCKS = 6
SESSIONS = st.sampled_from([b"", b"a", b"b"])
PARENTS = st.integers(0, 2).map(lambda number: bytes([number]))
FEW_TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=3)


class PoolLaws(RuleBasedStateMachine):
    """Sequences of blocks come, grow, are sealed, shared and go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.tables: list[list[int]] = []
        self.full: dict[int, bytes] = {}
        self.tails: dict[bytes, tuple[int, list[int]]] = {}
        self.reported: set[bytes] = set()
        self.sequence_number = 0

    @precondition(lambda self: self.pool.free_blocks)
    @rule(grow=st.booleans(), data=st.data())
    def allocate(self, grow, data):
        block = self.pool.allocate()
        self.overwritten(block)
        if grow and self.tables:
            data.draw(st.sampled_from(self.tables)).append(block)
        else:
            self.tables.append([block])

    @rule(session=SESSIONS, return_in_ns=st.integers(0, 20))
    def pause(self, session, return_in_ns):
        before = self.pool.free_blocks
        self.pool.pause(session, self.pool.now_ns + return_in_ns)
        assert self.pool.free_blocks == before

    @rule(session=SESSIONS)
    def resume(self, session):
        before = self.pool.free_blocks
        self.pool.resume(session)
        assert self.pool.free_blocks == before

    @rule(duration_ns=st.integers(0, 10))
    def pass_time(self, duration_ns):
        self.pool.now_ns += duration_ns

    @precondition(lambda self: self.pool.free_blocks)
    @rule(return_in_ns=st.integers(0, 20))
    def take_from_later(self, return_in_ns):
        block = self.pool.allocate_from_later(self.pool.now_ns + return_in_ns)
        if block is not None:
            self.overwritten(block)
            self.tables.append([block])

    def overwritten(self, block):
        self.full.pop(block, None)
        self.tails = {parent: tail for parent, tail in self.tails.items() if tail[0] != block}

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), digest=st.integers(0, 9).map(lambda n: bytes([n])), session=SESSIONS)
    def seal(self, data, digest, session):
        table = data.draw(st.sampled_from(self.tables))
        unsealed = [block for block in table if block not in self.full]
        if unsealed:
            duplicate = digest in self.full.values()
            self.pool.commit(unsealed[0], digest, b"parent", session)
            if not duplicate:
                self.full[unsealed[0]] = digest

    @rule(
        digests=st.lists(st.integers(0, 9).map(lambda n: bytes([n])), max_size=3, unique=True),
        session=SESSIONS,
    )
    def share(self, digests, session):
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
            self.pool.share(cached, session)
            assert self.pool.free_blocks == after <= before
            self.tables.append(cached)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        table = data.draw(st.sampled_from(self.tables))
        self.tables.remove(table)
        self.pool.release(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), parent=PARENTS, tokens=FEW_TOKENS)
    def release_and_keep_the_tail(self, data, parent, tokens):
        table = data.draw(st.sampled_from(self.tables))
        if table[-1] not in self.full and sum(table[-1] in each for each in self.tables) == 1:
            self.pool.keep_tail(table[-1], parent, tokens)
            self.tails[parent] = table[-1], tokens
            self.tables.remove(table)
            self.pool.release(table)

    @rule(parent=PARENTS, tokens=FEW_TOKENS)
    def go_on_from_a_tail(self, parent, tokens):
        block, held = self.tails.get(parent, (-1, []))
        shared = next((n for n in range(3, 0, -1) if len(held) >= n and held[:n] == tokens[:n]), 0)
        # Most of it follows something else: not this one's.
        shared = shared if 2 * shared >= len(held) else 0
        before, version = self.pool.free_blocks, self.pool.versions[block]
        assert self.pool.take_tail(parent, tokens) == ((block, shared) if shared else None)
        if shared:
            del self.tails[parent]
            self.tables.append([block])
            assert self.pool.free_blocks == before - 1
            assert self.pool.versions[block] == version + 1

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
    def reset(self):
        before = self.pool.free_blocks
        self.pool.reset()
        self.full.clear()
        self.tails.clear()
        assert self.pool.free_blocks == before

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
        assert len(self.pool.tails) == len(self.tails)


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


def test_tails_are_used_before_the_blocks_that_they_follow():
    """And a tail that another one replaces before either."""
    pool = BlockPool(4)
    prompt, first = pool.allocate(), pool.allocate()
    pool.commit(prompt, b"prompt", b"")
    pool.keep_tail(first, b"prompt", (1, 2))
    pool.release([prompt, first])
    second, other = pool.allocate(), pool.allocate()
    pool.share([prompt])
    pool.keep_tail(second, b"prompt", (3,))
    pool.release([prompt, second])
    pool.release([other])
    assert pool.take_tail(b"prompt", (1, 2)) is None
    assert [pool.allocate() for _ in range(4)] == [other, first, second, prompt]


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


def filled(pool: BlockPool, session: bytes, *digests: bytes) -> None:
    """A request of this session has filled blocks, and ended now."""
    blocks = [pool.allocate() for _ in digests]
    for block, digest in zip(blocks, digests, strict=True):
        pool.commit(block, digest, b"", session)
    pool.release(blocks)


def forgotten(pool: BlockPool, blocks: int) -> list[bytes]:
    """What goes when so many blocks are needed."""
    pool.take_changes()
    found: list[bytes] = []
    for _ in range(blocks):
        pool.allocate()
        changes = pool.take_changes()
        found += changes.removed if changes else ()
    return found


def test_what_a_paused_session_wants_latest_goes_first():
    pool = BlockPool(6)
    filled(pool, b"", b"old")
    pool.now_ns = 10
    filled(pool, b"soon", b"soon 0", b"soon 1")
    filled(pool, b"late", b"late 0", b"late 1")
    filled(pool, b"", b"new")
    pool.now_ns = 20
    pool.pause(b"soon", 25)
    pool.pause(b"late", 60)
    # Unused for 20, expected in 40 and in 5: as if that had been unused for 40 and for 5.
    expected = [b"late 1", b"late 0", b"old", b"new", b"soon 1", b"soon 0"]
    assert forgotten(pool, 6) == expected


def test_an_overdue_session_is_kept_a_while_then_let_go():
    pool = BlockPool(2)
    filled(pool, b"s", b"s")
    pool.pause(b"s", 100)
    pool.now_ns = 105
    filled(pool, b"", b"other")
    pool.now_ns = 120
    assert forgotten(pool, 1) == [b"s"], "20 overdue, and the other unused for 15"


def test_what_others_share_stays_in_the_lru_and_who_is_back_is_young():
    pool = BlockPool(4)
    filled(pool, b"s", b"system", b"own")
    pool.share(pool.cached_prefix([b"system"]), b"")
    pool.pause(b"s", 1000)
    pool.release(pool.cached_prefix([b"system"]))
    pool.now_ns = 10
    filled(pool, b"", b"x", b"y")
    pool.now_ns = 20
    assert forgotten(pool, 1) == [b"own"]
    pool.now_ns = 30
    assert forgotten(pool, 1) == [b"system"]
    again = BlockPool(2)
    filled(again, b"s", b"s")
    filled(again, b"", b"z")
    again.pause(b"s", 1000)
    again.now_ns = 5
    again.resume(b"s")
    assert forgotten(again, 1) == [b"z"]


def test_a_prefetch_takes_only_what_is_wanted_later():
    pool = BlockPool(2)
    filled(pool, b"", b"x")
    pool.now_ns = 10
    filled(pool, b"", b"y")
    pool.now_ns = 14
    assert pool.allocate_from_later(return_ns=20) is not None, "unused for 14, and wanted in 6"
    assert pool.allocate_from_later(return_ns=20) is None, "unused for 4"
    assert pool.holds(b"y")
