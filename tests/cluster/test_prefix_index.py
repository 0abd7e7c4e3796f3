"""The prefix index and expected prefixes give what a plain table gives, under any reports, losses
and snapshots."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tandem.cluster.router.prefix_cache.expectations import Expectations
from tandem.cluster.router.prefix_cache.index import PrefixIndex, PrefixMatch
from tandem.cluster.router.prefix_cache.runs import common_blocks
from tandem.facts.blocks import BlockChanges, block_hash
from tandem.facts.fleet import Tier
from tandem.policy.views import TierHits

BLOCK_SIZE = 16
EXPECTED_FOR_NS = 100
WORKERS = ("a", "b", "c")
OWN_TIERS = (Tier.DEVICE, Tier.HOST, Tier.DISK)


def chain_of(*names: int) -> list[bytes]:
    chain: list[bytes] = []
    for name in names:
        chain.append(block_hash(chain[-1] if chain else b"root", [name]))
    return chain


def tree() -> list[list[bytes]]:
    """Chains that part at several depths, and one that is a prefix of another."""
    trunk = list(range(12))
    return [
        chain_of(*trunk),
        chain_of(*trunk[:7]),
        chain_of(*trunk[:5], 50, 51, 52, 53),
        chain_of(*trunk[:5], 50, 61),
        chain_of(*trunk[:1], 70, 71, 72),
        chain_of(80, 81),
    ]


CHAINS = tree()
PARENTS = {
    digest: parent
    for chain in CHAINS
    for digest, parent in zip(chain, [b"root", *chain], strict=False)
}
DIGESTS = sorted(PARENTS)


class Obvious:
    """Sets of blocks by pool, and expectations in a list: every answer by counting."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, Tier], set[bytes]] = {}
        self.expected: list[tuple[int, str, list[bytes]]] = []

    def match(self, chain: list[bytes], now_ns: int) -> PrefixMatch:
        hits = {}
        for worker in WORKERS:
            within: set[bytes] = set()
            lengths = []
            for tier in OWN_TIERS:
                within = within | self.held.get((worker, tier), set())
                lengths.append(prefix(chain, within))
            for expiry_ns, expected_worker, blocks in self.expected:
                if expected_worker == worker and now_ns < expiry_ns:
                    lengths = [max(n, prefix(chain, set(blocks))) for n in lengths]
            device, host, disk = (BLOCK_SIZE * blocks for blocks in lengths)
            if disk:
                hits[worker] = TierHits(device, host - device, disk - host)
        remote = (blocks for (_, tier), blocks in self.held.items() if tier is Tier.REMOTE)
        return PrefixMatch(hits, BLOCK_SIZE * prefix(chain, set().union(*remote)))


def prefix(chain: list[bytes], held: set[bytes]) -> int:
    return next((n for n, digest in enumerate(chain) if digest not in held), len(chain))


workers = st.sampled_from(WORKERS)
tiers = st.sampled_from([*OWN_TIERS, Tier.REMOTE])
blocks = st.lists(st.sampled_from(DIGESTS), max_size=8)
# A pool stores a stretch of a prompt, and evicts one from its end.
stretches = st.builds(
    lambda chain, low, count, reverse: chain[low : low + count][:: -1 if reverse else 1],
    st.sampled_from(CHAINS),
    st.integers(0, 6),
    st.integers(1, 12),
    st.booleans(),
)


class IndexDuel(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.index = PrefixIndex(BLOCK_SIZE, EXPECTED_FOR_NS)
        self.obvious = Obvious()
        self.numbers: dict[tuple[str, Tier], int] = {}
        self.now_ns = 0

    def report(self, pool, removed, stored, skipped=0):
        number = self.numbers.get(pool, 0) + skipped
        changes = BlockChanges(
            number, tuple(removed), tuple(stored), tuple(PARENTS[d] for d in stored)
        )
        return self.index.apply(*pool, changes)

    @rule(
        worker=workers,
        tier=tiers,
        removed=st.one_of(blocks, stretches),
        stored=st.one_of(blocks, stretches),
    )
    def change(self, worker, tier, removed, stored):
        pool = worker, tier
        assert self.report(pool, removed, stored)
        self.numbers[pool] = self.numbers.get(pool, 0) + 1
        held = self.obvious.held.setdefault(pool, set())
        held -= set(removed)
        held |= set(stored)

    @rule(worker=workers, tier=tiers, stored=stretches, skipped=st.integers(1, 3))
    def lose_a_report(self, worker, tier, stored, skipped):
        assert not self.report((worker, tier), [], stored, skipped)

    @rule(worker=workers, tier=tiers, stored=stretches)
    def repeat_a_report(self, worker, tier, stored):
        if self.numbers.get((worker, tier), 0):
            assert self.report((worker, tier), stored, stored, skipped=-1)

    @rule(worker=workers, tier=tiers, held=st.one_of(blocks, stretches), ahead=st.integers(0, 5))
    def resynchronise(self, worker, tier, held, ahead):
        pool = worker, tier
        self.numbers[pool] = self.numbers.get(pool, 0) + ahead
        self.index.resynchronise(*pool, held, self.numbers[pool])
        self.obvious.held[pool] = set(held)

    @rule(worker=workers)
    def lose_worker(self, worker):
        self.index.forget_worker(worker)
        self.numbers = {pool: n for pool, n in self.numbers.items() if pool[0] != worker}
        self.obvious.held = {p: held for p, held in self.obvious.held.items() if p[0] != worker}
        self.obvious.expected = [e for e in self.obvious.expected if e[1] != worker]

    @rule(worker=workers, chain=st.sampled_from(CHAINS), count=st.integers(0, 12))
    def expect(self, worker, chain, count):
        self.index.expect(worker, chain[:count], self.now_ns)
        self.obvious.expected.append((self.now_ns + EXPECTED_FOR_NS, worker, chain[:count]))

    @rule(elapsed_ns=st.integers(1, EXPECTED_FOR_NS))
    def wait(self, elapsed_ns):
        self.now_ns += elapsed_ns

    @rule(chain=st.sampled_from(CHAINS), count=st.integers(0, 12))
    def look_up(self, chain, count):
        expected = self.obvious.match(chain[:count], self.now_ns)
        assert self.index.match(chain[:count], self.now_ns) == expected

    @invariant()
    def consistent(self):
        self.index.audit()
        held = set().union(*self.obvious.held.values())
        assert self.index.resident_blocks == len(held)
        for run in self.index._runs.runs():
            assert all(PARENTS[after] == before for before, after in pairwise(run.digests))

    def teardown(self):
        if hasattr(self, "index"):
            for chain in CHAINS:
                self.look_up(chain, len(chain))
                self.index.audit()


TestIndexDuel = IndexDuel.TestCase


def stored(chain: list[bytes], number: int = 0) -> BlockChanges:
    return BlockChanges(number, (), tuple(chain), (b"root", *chain[:-1]))


def test_the_fastest_tier_that_goes_on_counts():
    index, chain = PrefixIndex(BLOCK_SIZE), chain_of(*range(10))
    index.resynchronise("a", Tier.DEVICE, chain[:3] + chain[5:6], 0)
    index.resynchronise("a", Tier.HOST, chain[2:7], 0)
    index.resynchronise("a", Tier.DISK, chain[7:9], 0)
    index.resynchronise("pool", Tier.REMOTE, chain[:5], 0)
    assert index.match(chain, 0) == PrefixMatch({"a": TierHits(48, 64, 32)}, 80)


def test_a_hole_in_the_middle_ends_the_prefix_and_its_return_heals_it():
    index, chain = PrefixIndex(BLOCK_SIZE), chain_of(*range(1000))
    assert index.apply("a", Tier.DEVICE, stored(chain))
    assert index.apply("a", Tier.DEVICE, BlockChanges(1, (chain[400],), (), ()))
    assert index.match(chain, 0).hits == {"a": TierHits(400 * BLOCK_SIZE)}
    back = BlockChanges(2, (), (chain[400],), (chain[399],))
    assert index.apply("a", Tier.DEVICE, back)
    assert index.match(chain, 0).hits == {"a": TierHits(1000 * BLOCK_SIZE)}
    index.audit()


def test_a_prompt_stored_in_pieces_by_two_workers_is_one_run():
    index, chain = PrefixIndex(BLOCK_SIZE), chain_of(*range(96))
    for worker in "ab":
        for number in range(3):
            part = slice(32 * number, 32 * number + 32)
            parents = (b"root", *chain)[part]
            changes = BlockChanges(number, (), tuple(chain[part]), parents)
            index.apply(worker, Tier.DEVICE, changes)
    assert len(index._runs.runs()) == 1
    index.resynchronise("a", Tier.DEVICE, chain[:50], 5)
    index.resynchronise("c", Tier.DISK, chain, 0)
    index.match(chain, 0)
    assert [len(run.digests) for run in index._runs.runs()] == [50, 46]


def test_a_branch_stays_a_run_of_its_own():
    index, trunk, branch = PrefixIndex(BLOCK_SIZE), chain_of(0, 1, 2), chain_of(0, 1, 7)
    for worker in "ab":
        index.apply(worker, Tier.DEVICE, stored(trunk))
        index.apply(worker, Tier.DEVICE, BlockChanges(1, (), (branch[2],), (branch[1],)))
    assert sorted(len(run.digests) for run in index._runs.runs()) == [1, 3]
    assert index.match(branch, 0).hits == dict.fromkeys("ab", TierHits(48))


def test_a_second_holder_gets_its_own_length():
    index, chain = PrefixIndex(BLOCK_SIZE), chain_of(*range(100))
    index.apply("a", Tier.DEVICE, stored(chain))
    index.apply("b", Tier.DEVICE, stored(chain[:30]))
    other = [*chain[:20], *chain_of(7)]
    assert index.match(chain, 0).hits == {"a": TierHits(1600), "b": TierHits(480)}
    assert index.match(other, 0).hits == {"a": TierHits(320), "b": TierHits(320)}


def test_an_expectation_bridges_a_burst_and_ends():
    index, chain = PrefixIndex(BLOCK_SIZE), chain_of(*range(8))
    index.expect("a", chain, 0)
    assert index.match([*chain[:5], b"other"], 1_999_999_999).hits == {"a": TierHits(80)}
    assert index.match(chain, 2_000_000_000).hits == {}


def test_a_report_of_a_false_parent_does_not_stop_the_index():
    index, chain = PrefixIndex(BLOCK_SIZE), chain_of(*range(4))
    confused = BlockChanges(0, (), (chain[1], chain[0], chain[2]), (chain[2], chain[1], chain[0]))
    index.apply("a", Tier.DEVICE, confused)
    assert index.match(chain, 0).hits["a"].device_tokens <= 3 * BLOCK_SIZE


def test_workers_come_and_go_without_a_trace():
    index, chain = PrefixIndex(BLOCK_SIZE), chain_of(*range(5))
    for round_number in range(100):
        worker = f"worker-{round_number}"
        index.apply(worker, Tier.DEVICE, stored(chain))
        assert index.match(chain, 0).hits == {worker: TierHits(80)}
        index.forget_worker(worker)
    assert index.resident_blocks == 0
    index.audit()


@pytest.mark.parametrize("count", [1, 10, 1500])
def test_many_workers_with_lengths_of_their_own(count):
    index, chain = PrefixIndex(BLOCK_SIZE), chain_of(*range(40))
    lengths = {f"worker-{place:04}": 1 + place * 7 % 40 for place in range(count)}
    for worker, length in lengths.items():
        index.apply(worker, Tier.DEVICE, stored(chain[:length]))
    expected = {worker: TierHits(length * BLOCK_SIZE) for worker, length in lengths.items()}
    assert index.match(chain, 0).hits == expected
    index.audit()


@given(shared=st.integers(0, 70), one=st.integers(0, 70), other=st.integers(0, 70))
def test_common_blocks_are_found_by_bisection(shared, one, other):
    trunk = range(shared)
    known = chain_of(*trunk, *range(100, 100 + one)) or chain_of(1)
    chain = chain_of(*trunk, *range(200, 200 + other)) or chain_of(2)
    expected = next(
        (n for n, (a, b) in enumerate(zip(known, chain, strict=False)) if a != b),
        min(len(known), len(chain)),
    )
    assert common_blocks(known, chain) == expected
    assert common_blocks(known, [b"before", *chain], 1) == expected


LIFETIME_NS = 10


class Counted(bytes):
    """A digest that counts how often it is compared."""

    compared = 0
    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def prefixes_of(names: str) -> list[bytes]:
    """A digest names everything before it."""
    return [names[: end + 1].encode() for end in range(len(names))]


def shared(one: list[bytes], other: list[bytes]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))


steps = st.tuples(
    st.sampled_from(["expect", "match", "forget"]),
    st.sampled_from(["v", "w", "x"]),
    st.text("ab", max_size=6),
    st.integers(0, 6),
)


@given(st.lists(steps, max_size=40))
def test_the_tree_gives_what_a_list_gives_and_empties_itself(happenings):
    tree, plain, now_ns = Expectations(LIFETIME_NS), [], 0
    for what, worker, names, elapsed_ns in happenings:
        now_ns += elapsed_ns
        plain = [(expiry, *rest) for expiry, *rest in plain if expiry > now_ns]
        chain = prefixes_of(names)
        if what == "expect":
            tree.add(worker, chain, now_ns)
            plain.append((now_ns + LIFETIME_NS, worker, chain))
        elif what == "forget":
            tree.forget_worker(worker)
            plain = [each for each in plain if each[1] != worker]
        else:
            expected: dict[str, int] = {}
            for _, who, known in plain:
                if blocks := shared(known, chain):
                    expected[who] = max(expected.get(who, 0), blocks)
            assert tree.match(chain, now_ns) == expected
    tree.match([], now_ns + LIFETIME_NS)
    assert not tree._root.behind


def test_a_lookup_behind_one_system_prompt_does_not_compare_with_every_request():
    tree, system = Expectations(LIFETIME_NS), [b"s%d" % place for place in range(100)]
    for request in range(2000):
        own = [b"%d %d" % (request, place) for place in range(50)]
        tree.add(f"w{request % 10}", system + own, 0)
    asked = [Counted(digest) for digest in [*system, b"new"]]
    Counted.compared = 0
    assert tree.match(asked, 0) == {f"w{place}": 100 for place in range(10)}
    assert Counted.compared < 50
