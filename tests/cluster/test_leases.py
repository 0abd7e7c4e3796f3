"""Leases of requests, and heartbeats: what times out when."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.gateway.housekeeping import Heartbeats
from tandem.cluster.node.gateways import Leases


def test_a_lease_ends_unless_it_is_renewed():
    leases = Leases()
    leases.grant("a", "g", 10)
    leases.grant("b", "g", 10)
    leases.grant("c", "h", 12)
    assert leases.next_wakeup() == 10
    assert leases.expired(9) == {}
    leases.renew("g", ("a", "unknown", "c"), 20)
    assert leases.expired(12) == {"g": ("b",), "h": ("c",)}
    leases.end("b")
    leases.end("c")
    leases.end("c")
    assert leases.expired(19) == {}
    assert (leases.of("g"), leases.of("h"), len(leases)) == (("a",), (), 1)
    assert leases.next_wakeup() == 20


def test_an_id_that_is_taken_keeps_its_owner():
    leases = Leases()
    leases.grant("a", "g", 10)
    leases.grant("a", "h", 50)
    assert leases.owner("a") == "g"
    assert leases.expired(10) == {"g": ("a",)}
    assert leases.sole_owner == "g"
    leases.grant("b", "h", 10)
    assert leases.sole_owner is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["grant", "renew", "end"]),
            st.sampled_from("abcdef"),
            st.sampled_from("gh"),
        )
    )
)
def test_leases_are_those_of_a_plain_table(steps):
    leases, table = Leases(), {}
    for now_ns, (verb, name, gateway) in enumerate(steps):
        end_ns = now_ns + 5
        if verb == "grant":
            leases.grant(name, gateway, end_ns)
            table.setdefault(name, (gateway, end_ns))
        elif verb == "renew":
            leases.renew(gateway, (name,), end_ns)
            if name in table and table[name][0] == gateway:
                table[name] = gateway, end_ns
        else:
            leases.end(name)
            table.pop(name, None)
        expired = {one for names in leases.expired(now_ns).values() for one in names}
        assert expired == {one for one, (_, end) in table.items() if end <= now_ns}
        assert leases.request_ids == set(table)
        assert leases.next_wakeup() == min((end for _, end in table.values()), default=None)


def test_the_longest_silent_come_first_and_a_message_is_enough():
    beats = Heartbeats(10)
    assert beats.next_wakeup() is None
    for now_ns, peer in enumerate("abc"):
        beats.received(peer, now_ns)
    assert beats.next_wakeup() == 10
    assert beats.silent(9) == []
    assert beats.silent(11) == ["a", "b"]
    beats.received("a", 11)
    assert beats.silent(12) == ["b", "c"]
    beats.forget("b")
    beats.forget("b")
    assert beats.silent(12) == ["c"]
    assert beats.silent_ns("a", 15) == 4


def test_own_sleep_is_nobodys_silence():
    beats = Heartbeats(10)
    beats.received("a", 0)
    beats.slept(90)
    assert beats.silent(95) == []
    assert beats.silent(100) == ["a"]
