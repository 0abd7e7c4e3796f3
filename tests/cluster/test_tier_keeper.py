"""What the memory and the disk of one process hold: what comes, goes down, comes up and is lost."""

from itertools import count
from time import process_time_ns

from tandem.cluster.tiers.config import TierLimits, TiersConfig
from tandem.cluster.tiers.keeper import TierKeeper
from tandem.cluster.tiers.shelves import TierChanged
from tandem.facts.fleet import Tier
from tandem.facts.kv_tiers import BlockName
from tandem.messages.node import BlocksKept, CopyBlocks, ForgetBlocks
from tandem.policy.eviction.pinned import Pin

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


def keeper_of(host: int = 0, disk: int = 0, **config) -> TierKeeper:
    sizes = {HOST: host, DISK: disk}
    capacities = {tier: blocks for tier, blocks in sizes.items() if blocks}
    return TierKeeper(TiersConfig(capacities, **config), count())


def store(keeper: TierKeeper, text: str, tier: Tier = HOST, tenant: str = "") -> list:
    names = chain(text, tenant)
    wanted = keeper.wanted(tier, names)
    effects = keeper.kept(tier, wanted, [name.digest for name in wanted], 0)
    keeper.audit()
    return effects


def news(effects: list) -> list[tuple]:
    return [
        (each.tier, each.changes.removed, each.changes.stored)
        for each in effects
        if isinstance(each, TierChanged)
    ]


def end(keeper: TierKeeper, copy: CopyBlocks, text: str, problem: str = "") -> list:
    effects = keeper.copied(BlocksKept(copy.copy_id, copy.target, digests(text), problem), 0)
    keeper.audit()
    return effects


def test_what_is_kept_is_told_with_its_parents_and_a_number():
    keeper = keeper_of(host=4)
    (told,) = store(keeper, "abc")
    assert told.changes.stored_parents == (b"root", b"a", b"b")
    assert told.changes.sequence_number == 0
    assert keeper.shelves.by_tier[HOST].listing() == (digests("cba"), 1)
    assert keeper.wanted(HOST, chain("abcd")) == chain("abcd")[3:]


def test_what_was_not_kept_may_be_asked_for_again():
    keeper = keeper_of(host=4)
    names = keeper.wanted(HOST, chain("ab"))
    assert keeper.wanted(HOST, chain("ab")) == ()
    assert news(keeper.kept(HOST, names, digests("a"), 0)) == [(HOST, (), digests("a"))]
    assert keeper.wanted(HOST, chain("ab")) == chain("ab")[1:]


def test_what_the_memory_evicts_goes_down_and_leaves_only_then():
    keeper = keeper_of(host=2, disk=8)
    store(keeper, "ab")
    effects = store(keeper, "xy")
    (copy,) = [each for each in effects if isinstance(each, CopyBlocks)]
    assert (copy.source, copy.target, copy.names) == (HOST, DISK, chain("ab"))
    assert not any(isinstance(each, ForgetBlocks) for each in effects)
    assert keeper.shelves.tier_of(b"a") is None, "found nowhere while it is on its way"
    assert keeper.wanted(HOST, chain("ab")) == (), "its bytes still lie there"
    effects = end(keeper, copy, "ab")
    assert news(effects) == [(DISK, (), digests("ab"))]
    assert ForgetBlocks(HOST, digests("ab")) in effects
    assert keeper.shelves.tier_of(b"a") is DISK


def test_what_the_disk_did_not_take_is_gone():
    keeper = keeper_of(host=2, disk=8)
    store(keeper, "ab")
    (copy,) = [each for each in store(keeper, "xy") if isinstance(each, CopyBlocks)]
    effects = end(keeper, copy, "b", "disk full")
    assert news(effects) == [(DISK, (), digests("b"))]
    assert ForgetBlocks(HOST, digests("ab")) in effects
    assert keeper.shelves.by_tier[DISK].counts.failures == 1
    assert keeper.wanted(HOST, chain("a")) == chain("a")


def test_without_a_disk_the_evicted_is_forgotten_at_once():
    keeper = keeper_of(host=2)
    store(keeper, "ab")
    effects = store(keeper, "x")
    assert news(effects) == [(HOST, digests("b"), digests("x"))]
    assert ForgetBlocks(HOST, digests("b")) in effects


def test_what_stays_out_has_its_bytes_forgotten():
    keeper = keeper_of(host=3)
    effects = store(keeper, "abcde")
    assert news(effects) == [(HOST, (), digests("abc"))]
    assert ForgetBlocks(HOST, digests("de")) in effects


def test_more_than_may_wait_to_go_down_is_given_up():
    limits = TierLimits(copies=1, copy_blocks=2)
    keeper = keeper_of(host=6, disk=8, limits=limits)
    store(keeper, "abcdef")
    effects = store(keeper, "uvwxyz")
    (copy,) = [each for each in effects if isinstance(each, CopyBlocks)]
    assert len(copy.names) == 2
    (forgotten,) = [each for each in effects if isinstance(each, ForgetBlocks)]
    assert len(forgotten.digests) == 2
    assert len(keeper.shelves.by_tier[HOST].leaving) == 4


def test_the_disk_of_before_is_taken_over_the_youngest_chain_last_to_go():
    found = (*chain("ab"), *chain("xy"), *chain("abc")[2:])
    keeper = keeper_of(host=1, disk=3, found=found)
    effects = keeper.begin(0)
    keeper.audit()
    assert ForgetBlocks(DISK, digests("yx")) in effects
    assert set(keeper.shelves.by_tier[DISK].store.listing()) == set(digests("abc"))
    assert keeper.begin(0) == []


def test_a_disk_full_of_one_conversation_is_taken_over_at_once():
    def digest(index: int) -> bytes:
        return index.to_bytes(4, "big")

    blocks = 20_000
    found = tuple(BlockName(digest(index + 1), digest(index), digest(1)) for index in range(blocks))
    keeper = keeper_of(host=1, disk=blocks, found=found)
    began_ns = process_time_ns()
    keeper.begin(0)
    assert process_time_ns() - began_ns < 1_000_000_000
    assert keeper.shelves.by_tier[DISK].store.blocks == blocks


def test_only_so_much_comes_up_at_once_and_each_block_once():
    limits = TierLimits(copies=1, copy_blocks=2)
    keeper = keeper_of(host=40, disk=8, limits=limits)
    store(keeper, "abcd", DISK)
    (copy,) = keeper.promote(DISK, chain("abcd"))
    assert copy.names == chain("abcd")[:2]
    assert keeper.promote(DISK, chain("abcd")) == []
    assert set(keeper.rising) == set(digests("ab"))
    end(keeper, copy, "ab")
    assert keeper.shelves.tier_of(b"a") is HOST
    assert not keeper.rising
    (copy,) = keeper.promote(DISK, chain("abcd")[2:])
    assert copy.names == chain("abcd")[2:]


def test_the_spoilt_is_dropped_and_wanted_again():
    keeper = keeper_of(host=4)
    store(keeper, "ab")
    effects = keeper.shelves.drop(HOST, digests("bq"))
    assert news(effects) == [(HOST, digests("b"), ())]
    assert ForgetBlocks(HOST, digests("b")) in effects
    assert keeper.wanted(HOST, chain("ab")) == chain("ab")[1:]


def test_a_pin_holds_what_is_there_and_what_is_on_its_way():
    keeper = keeper_of(host=4)
    names = chain("ab")
    store(keeper, "a")
    coming = keeper.wanted(HOST, names)
    keeper.shelves.pin(digests("ab"), Pin(until_ns=100), 0)
    keeper.kept(HOST, coming, digests("b"), 1)
    store(keeper, "vwxyz")
    assert keeper.shelves.tier_of(b"a") is HOST
    assert keeper.shelves.tier_of(b"b") is HOST


def test_a_tenant_has_at_most_its_share_of_each_tier():
    keeper = keeper_of(host=8, disk=8, quotas={"t": 0.25})
    store(keeper, "abcd")
    effects = store(keeper, "wxyz", tenant="t")
    assert news(effects) == [(HOST, (), digests("wx"))]
    assert keeper.shelves.by_tier[HOST].store.blocks == 6
