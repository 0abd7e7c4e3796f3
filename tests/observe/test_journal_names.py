"""The names that stand in a journal: they sort as the true ones, and come back to nobody."""

from array import array
from random import Random

from tandem.facts.request import Request
from tandem.observe.journal.pseudonyms import RequestNumbers, SessionNames, TenantNames
from tandem.observe.journal.records import UNKNOWN, encode


def test_tenants_sort_as_their_names_do():
    chance = Random(1)
    names = [f"{chance.randrange(10**6):x}" for _ in range(300)]
    tenants = TenantNames(names[:20])
    labels = {name: tenants.label(name) for name in names}
    assert sorted(labels, key=labels.__getitem__) == sorted(labels)
    assert len(set(labels.values())) == len(labels)
    assert all(tenants.label(name) == label for name, label in labels.items())


def test_tenants_that_come_in_order_get_names_all_the_same():
    for names in (list(range(200)), list(range(200, 0, -1))):
        tenants = TenantNames()
        labels = [tenants.label(f"{number:04}") for number in names]
        assert len(set(labels)) == 200
        assert (labels == sorted(labels)) is (names[0] == 0)
        assert max(map(len, labels)) < 60


def test_nobody_stays_nobody_and_plain_names_stay():
    assert TenantNames().label("") == ""
    assert TenantNames(plain=True).label("alice") == "alice"
    assert SessionNames(b"k").label("") == ""
    assert SessionNames(b"k", plain=True).label("chat-1") == "chat-1"


def test_sessions_are_digests_under_a_key():
    one, other = SessionNames(b"one"), SessionNames(b"other")
    assert one.label("chat-1") == one.label("chat-1")
    assert len({one.label("chat-1"), one.label("chat-2"), other.label("chat-1")}) == 3
    assert "chat" not in one.label("chat-1")


def test_sessions_that_are_no_text_are_written_all_the_same():
    torn = "chat \ud800"
    for names in (SessionNames(b"k"), SessionNames(b"k", plain=True)):
        assert encode(names.label(torn))


def request(request_id: str, prompt) -> Request:
    return Request(request_id, prompt)


def test_requests_have_numbers_while_they_are_open():
    numbers, prompt = RequestNumbers(), array("I", [1, 2, 3])
    assert numbers.submitted(request("g.1/a-0", prompt)) == (0, 0)
    assert numbers.submitted(request("g.1/b~x", (4, 5))) == (1, 1)
    assert numbers.submitted(request("g.1/a-1", prompt)) == (2, 0)
    assert numbers.name("g.1/a-0") == 0
    assert numbers.name("g.1/a-0~1") == "0~1"
    assert numbers.name("g.1/a-0~1.2") == "0~1.2"
    assert numbers.name("g.1/b~x") == 1
    assert numbers.name("g.1/b~x~1") == "1~1"
    assert numbers.name("g.1/b") == UNKNOWN
    numbers.ended("g.1/a-0")
    assert numbers.name("g.1/a-0") == numbers.name("g.1/a-0~1") == UNKNOWN
    numbers.ended("g.1/a-0")
    # The prompt is known for as long as somebody has it.
    assert numbers.submitted(request("g.1/a-2", prompt)) == (3, 0)
    for name in ("g.1/a-1", "g.1/a-2", "g.1/b~x"):
        numbers.ended(name)
    assert numbers.submitted(request("g.1/a-0", prompt)) == (4, 2)
