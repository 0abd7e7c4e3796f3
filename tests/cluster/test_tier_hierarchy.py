"""What the memory and the disk of one process hold: what comes, goes down, comes up and is lost."""

from collections import Counter
from itertools import count
from time import process_time_ns

import hypothesis.strategies as st
from hypothesis import given

from tandem.cluster.tiers.config import TierLimits, TiersConfig
from tandem.cluster.tiers.hierarchy import TierHierarchy
from tandem.cluster.tiers.tier_caches import TierChanged
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.messages.node import BlocksKept, CopyBlocks, ForgetBlocks
from tandem.policy.eviction.pins_and_quotas import Pin

HOST, DISK, REMOTE = Tier.HOST, Tier.DISK, Tier.REMOTE


def chain(text: str, tenant: str = "") -> tuple[BlockName, ...]:
    """Blocks named by letters, each after the one before."""
    digests = [letter.encode() for letter in text]
    parents = [b"root", *digests]
    return tuple(
        BlockName(digest, parent, digests[0], tenant)
        for digest, parent in zip(digests, parents, strict=False)
    )


def digests(text: str) -> tuple[bytes, ...]:
    return tuple(letter.encode() for letter in text)


def keeper_of(host: int = 0, disk: int = 0, **config) -> TierHierarchy:
    sizes = {HOST: host, DISK: disk}
    capacities = {tier: blocks for tier, blocks in sizes.items() if blocks}
    return TierHierarchy(TiersConfig(capacities, **config), count())


def store(hierarchy: TierHierarchy, text: str, tier: Tier = HOST, tenant: str = "") -> list:
    names = chain(text, tenant)
    wanted = hierarchy.wanted(tier, names)
    effects = hierarchy.kept(tier, wanted, [name.digest for name in wanted], 0)
    hierarchy.audit()
    return effects


def changes(effects: list) -> list[tuple]:
    return [
        (each.tier, each.changes.removed, each.changes.stored)
        for each in effects
        if isinstance(each, TierChanged)
    ]


def end(hierarchy: TierHierarchy, copy: CopyBlocks, text: str, problem: str = "") -> list:
    effects = hierarchy.copied(BlocksKept(copy.copy_id, copy.target, digests(text), problem), 0)
    hierarchy.audit()
    return effects


def test_what_is_kept_is_reported_with_its_parents_and_a_number():
    hierarchy = keeper_of(host=4)
    (reported,) = store(hierarchy, "abc")
    assert reported.changes.stored_parents == (b"root", b"a", b"b")
    assert reported.changes.sequence_number == 0
    assert hierarchy.caches.by_tier[HOST].listing() == (digests("cba"), 1)
    assert hierarchy.wanted(HOST, chain("abcd")) == chain("abcd")[3:]


def test_what_was_not_kept_may_be_asked_for_again():
    hierarchy = keeper_of(host=4)
    names = hierarchy.wanted(HOST, chain("ab"))
    assert hierarchy.wanted(HOST, chain("ab")) == ()
    assert changes(hierarchy.kept(HOST, names, digests("a"), 0)) == [(HOST, (), digests("a"))]
    assert hierarchy.wanted(HOST, chain("ab")) == chain("ab")[1:]


def test_what_the_memory_evicts_goes_down_and_leaves_only_then():
    hierarchy = keeper_of(host=2, disk=8)
    store(hierarchy, "ab")
    effects = store(hierarchy, "xy")
    (copy,) = [each for each in effects if isinstance(each, CopyBlocks)]
    assert (copy.source, copy.target, copy.names) == (HOST, DISK, chain("ab"))
    assert not any(isinstance(each, ForgetBlocks) for each in effects)
    assert changes(effects) == [(HOST, (), digests("xy"))]
    assert hierarchy.caches.tier_of(b"a") is HOST, "found there while it is on its way"
    assert hierarchy.wanted(HOST, chain("ab")) == (), "its bytes still lie there"
    effects = end(hierarchy, copy, "ab")
    assert changes(effects) == [(DISK, (), digests("ab")), (HOST, digests("ab"), ())]
    assert ForgetBlocks(HOST, digests("ab")) in effects
    assert hierarchy.caches.tier_of(b"a") is DISK


def test_what_the_disk_did_not_take_is_gone():
    hierarchy = keeper_of(host=2, disk=8)
    store(hierarchy, "ab")
    (copy,) = [each for each in store(hierarchy, "xy") if isinstance(each, CopyBlocks)]
    effects = end(hierarchy, copy, "b", "disk full")
    assert changes(effects) == [(DISK, (), digests("b")), (HOST, digests("ab"), ())]
    assert ForgetBlocks(HOST, digests("ab")) in effects
    assert hierarchy.caches.by_tier[DISK].counts.failures == 1
    assert hierarchy.wanted(HOST, chain("a")) == chain("a")


def test_without_a_disk_the_evicted_is_forgotten_at_once():
    hierarchy = keeper_of(host=2)
    store(hierarchy, "ab")
    effects = store(hierarchy, "x")
    assert changes(effects) == [(HOST, digests("b"), digests("x"))]
    assert ForgetBlocks(HOST, digests("b")) in effects


def test_what_stays_out_has_its_bytes_forgotten():
    hierarchy = keeper_of(host=3)
    effects = store(hierarchy, "abcde")
    assert changes(effects) == [(HOST, (), digests("abc"))]
    assert ForgetBlocks(HOST, digests("de")) in effects


def test_more_than_may_wait_to_go_down_is_given_up():
    limits = TierLimits(copies=1, copy_blocks=2)
    hierarchy = keeper_of(host=6, disk=8, limits=limits)
    store(hierarchy, "abcdef")
    effects = store(hierarchy, "uvwxyz")
    (copy,) = [each for each in effects if isinstance(each, CopyBlocks)]
    assert len(copy.names) == 2
    (forgotten,) = [each for each in effects if isinstance(each, ForgetBlocks)]
    assert len(forgotten.digests) == 2
    assert len(hierarchy.caches.by_tier[HOST].leaving) == 4


def test_the_disk_of_before_is_taken_over_the_youngest_chain_last_to_go():
    found = (*chain("ab"), *chain("xy"), *chain("abc")[2:])
    hierarchy = keeper_of(host=1, disk=3, found=found)
    effects = hierarchy.begin(0)
    hierarchy.audit()
    assert ForgetBlocks(DISK, digests("yx")) in effects
    assert set(hierarchy.caches.by_tier[DISK].store.listing()) == set(digests("abc"))
    assert hierarchy.begin(0) == []


def test_a_disk_full_of_one_conversation_is_taken_over_at_once():
    def digest(index: int) -> bytes:
        return index.to_bytes(4, "big")

    blocks = 20_000
    found = tuple(BlockName(digest(index + 1), digest(index), digest(1)) for index in range(blocks))
    hierarchy = keeper_of(host=1, disk=blocks, found=found)
    began_ns = process_time_ns()
    hierarchy.begin(0)
    assert process_time_ns() - began_ns < 1_000_000_000
    assert hierarchy.caches.by_tier[DISK].store.blocks == blocks


def test_only_so_much_comes_up_at_once_and_each_block_once():
    limits = TierLimits(copies=1, copy_blocks=2)
    hierarchy = keeper_of(host=40, disk=8, limits=limits)
    store(hierarchy, "abcd", DISK)
    (copy,) = hierarchy.promote(DISK, chain("abcd"))
    assert copy.names == chain("abcd")[:2]
    assert hierarchy.promote(DISK, chain("abcd")) == []
    assert set(hierarchy.rising) == set(digests("ab"))
    end(hierarchy, copy, "ab")
    assert hierarchy.caches.tier_of(b"a") is HOST
    assert not hierarchy.rising
    (copy,) = hierarchy.promote(DISK, chain("abcd")[2:])
    assert copy.names == chain("abcd")[2:]


def test_the_corrupt_is_dropped_and_wanted_again():
    hierarchy = keeper_of(host=4)
    store(hierarchy, "ab")
    effects = hierarchy.caches.drop(HOST, digests("bq"))
    assert changes(effects) == [(HOST, digests("b"), ())]
    assert ForgetBlocks(HOST, digests("b")) in effects
    assert hierarchy.wanted(HOST, chain("ab")) == chain("ab")[1:]


def test_a_pin_holds_what_is_there_and_what_is_on_its_way():
    hierarchy = keeper_of(host=4)
    names = chain("ab")
    store(hierarchy, "a")
    coming = hierarchy.wanted(HOST, names)
    hierarchy.caches.pin(digests("ab"), Pin(until_ns=100), 0)
    hierarchy.kept(HOST, coming, digests("b"), 1)
    store(hierarchy, "vwxyz")
    assert hierarchy.caches.tier_of(b"a") is HOST
    assert hierarchy.caches.tier_of(b"b") is HOST


def test_a_tenant_has_at_most_its_share_of_each_tier():
    hierarchy = keeper_of(host=8, disk=8, quotas={"t": 0.25})
    store(hierarchy, "abcd")
    effects = store(hierarchy, "wxyz", tenant="t")
    assert changes(effects) == [(HOST, (), digests("wx"))]
    assert hierarchy.caches.by_tier[HOST].store.blocks == 6
    (of_host, of_disk) = hierarchy.caches.figures()
    assert (of_host.tenant_blocks, of_disk.tenant_blocks) == ((("t", 2),), (("t", 0),))


def test_after_a_reset_nothing_is_there_and_what_comes_late_does_not_stay():
    hierarchy = keeper_of(host=3, disk=9)
    (_, down) = store(hierarchy, "abc"), of_copies(store(hierarchy, "defg"))
    late = hierarchy.wanted(HOST, chain("xy"))
    assert changes(hierarchy.caches.reset()) == [
        (HOST, digests("abc"), ()),
        (HOST, digests("fed"), ()),
    ]
    assert not any(hierarchy.caches.tier_of(digest) for digest in digests("abcdefg"))
    hierarchy.audit()
    assert changes(hierarchy.kept(HOST, late, digests("xy"), 0)) == []
    hierarchy.audit()
    for copy in down:
        effects = end(hierarchy, copy, b"".join(each.digest for each in copy.names).decode())
        assert changes(effects) == []
        assert any(isinstance(each, ForgetBlocks) and each.tier is DISK for each in effects)
    # The next ones of the same names do.
    assert len(hierarchy.wanted(HOST, chain("xy"))) == 2
    assert changes(hierarchy.kept(HOST, late, digests("xy"), 0)) == [(HOST, (), digests("xy"))]


def of_copies(effects: list) -> list[CopyBlocks]:
    return [each for each in effects if isinstance(each, CopyBlocks)]


BLOCKS = st.lists(st.sampled_from("abcdefghij"), max_size=5, unique=True)


@given(st.lists(st.tuples(BLOCKS, st.booleans(), st.booleans()), max_size=30))
def test_every_block_that_was_ever_written_is_accounted_for(writes):
    """Blocks arrive or are given up, and so are the copies that follow; what a tier reported to
    hold is there, and what it does not hold is wanted again."""
    hierarchy = keeper_of(host=3, disk=4)
    reported: Counter[tuple[Tier, bytes]] = Counter()
    for now_ns, (letters, arrives, copies_end_well) in enumerate(writes):
        wanted = hierarchy.wanted(HOST, chain("".join(letters)))
        came = [name.digest for name in wanted] if arrives else []
        effects = hierarchy.kept(HOST, wanted, came, now_ns)
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, TierChanged):
                reported.update((effect.tier, digest) for digest in effect.changes.stored)
                reported.subtract((effect.tier, digest) for digest in effect.changes.removed)
            elif isinstance(effect, CopyBlocks):
                kept = b"".join(name.digest for name in effect.names) if copies_end_well else b""
                effects += end(hierarchy, effect, kept.decode())
    for tier in (HOST, DISK):
        store = hierarchy.caches.by_tier[tier].store
        for digest in digests("abcdefghij"):
            assert reported[tier, digest] == store.resident(digest)
        assert len(hierarchy.wanted(tier, chain("abcdefghij"))) == 10 - store.blocks
