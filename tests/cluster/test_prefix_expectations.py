"""Expected prefixes against a plain list of them, and their price behind one system prompt."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.router.prefix_cache.expectations import Expectations

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


def chain_of(names: str) -> list[bytes]:
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
def test_the_tree_says_what_a_list_says_and_empties_itself(happenings):
    tree, plain, now_ns = Expectations(LIFETIME_NS), [], 0
    for what, worker, names, elapsed_ns in happenings:
        now_ns += elapsed_ns
        plain = [(expiry, *rest) for expiry, *rest in plain if expiry > now_ns]
        chain = chain_of(names)
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
