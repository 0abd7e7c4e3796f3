"""The store of responses: bounded in bytes, number and time, and each owner sees its own."""

import pytest

from tandem.api.config import ResponseStoreConfig
from tandem.api.response_store import ResponseGone, ResponseStore
from tandem.facts.errors import InvalidConfiguration

ENTRY = 1000


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def store_of(clock, **limits) -> ResponseStore:
    return ResponseStore(ResponseStoreConfig(**limits), now_s=clock)


def keep(store, name, owner="a", previous=None, size=0) -> None:
    assert store.begin(owner, name, previous, b"[]")
    store.complete(name, b"x" * (size or 1))


def kept(store, *names, owner="a") -> list[str]:
    found = []
    for name in names:
        try:
            found.append(store.find(owner, name).response_id)
        except ResponseGone:
            continue
    return found


def test_a_conversation_is_found_from_its_end(clock):
    store = store_of(clock)
    keep(store, "one")
    keep(store, "two", previous="one")
    keep(store, "three", previous="two")
    turns = store.conversation("a", "three")
    assert [turn.response_id for turn in turns] == ["one", "two", "three"]
    store.delete("a", "two")
    with pytest.raises(ResponseGone) as gone:
        store.conversation("a", "three")
    assert gone.value.response_id == "two"
    assert kept(store, "one", "two", "three") == ["one", "three"]


def test_nobody_finds_or_deletes_what_is_anothers(clock):
    store = store_of(clock)
    keep(store, "one", owner="a")
    keep(store, "two", owner="b", previous="one")
    assert kept(store, "one", "two", owner="b") == ["two"]
    for wanted in (store.find, store.delete, store.conversation):
        with pytest.raises(ResponseGone):
            wanted("b", "one")
    with pytest.raises(ResponseGone):
        store.conversation("b", "two")
    assert kept(store, "one") == ["one"]


def test_what_is_being_made_is_not_there_yet(clock):
    store = store_of(clock)
    assert store.begin("a", "one", None, b"[]")
    assert kept(store, "one") == []
    store.complete("one", b"{}")
    assert kept(store, "one") == ["one"]


def test_the_least_recently_used_leaves_first(clock):
    store = store_of(clock, limit_responses=3)
    for name in ("one", "two", "three"):
        keep(store, name)
    assert kept(store, "one") == ["one"]
    keep(store, "four")
    assert len(store) == 3
    assert kept(store, "two", "one", "three", "four") == ["one", "three", "four"]


def test_bytes_are_bounded_and_come_back(clock):
    limit_bytes = 20 * ENTRY
    store = store_of(clock, limit_bytes=limit_bytes)
    names = [f"r{number}" for number in range(50)]
    for name in names:
        keep(store, name, size=ENTRY)
        assert store.held_bytes <= limit_bytes
    left = kept(store, *names)
    assert left == names[-len(left) :]
    assert 1 < len(left) < 10
    for name in left:
        store.delete("a", name)
    assert (len(store), store.held_bytes) == (0, 0)


def test_one_that_is_too_large_is_not_kept(clock):
    store = store_of(clock, limit_bytes=16 * ENTRY)
    assert not store.begin("a", "one", None, b"x" * 2 * ENTRY)
    assert store.begin("a", "two", None, b"[]")
    store.complete("two", b"x" * 2 * ENTRY)
    assert (len(store), store.held_bytes) == (0, 0)
    # Whoever completes what has left meanwhile is not told.
    store.complete("two", b"x")
    assert len(store) == 0


def test_who_keeps_most_gives_way(clock):
    store = store_of(clock, limit_responses=10)
    keep(store, "mine", owner="small")
    for number in range(50):
        keep(store, f"r{number}", owner="large")
    assert kept(store, "mine", owner="small") == ["mine"]
    assert len(store) == 10


def test_what_nobody_uses_is_forgotten(clock):
    store = store_of(clock, lifetime_s=60.0)
    keep(store, "one")
    keep(store, "two")
    clock.now_s = 50.0
    assert kept(store, "two") == ["two"]
    clock.now_s = 100.0
    assert kept(store, "one", "two") == ["two"]
    keep(store, "three")
    assert len(store) == 2


def test_a_store_of_nothing_keeps_nothing(clock):
    store = store_of(clock, limit_bytes=0)
    assert not store.begin("a", "one", None, b"[]")
    assert len(store) == 0


@pytest.mark.parametrize(
    "wrong", [{"limit_bytes": -1}, {"limit_responses": 0}, {"lifetime_s": 0.0}], ids=str
)
def test_limits_make_sense(wrong):
    with pytest.raises(InvalidConfiguration, match=next(iter(wrong))):
        ResponseStoreConfig(**wrong)
