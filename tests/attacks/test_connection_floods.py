"""Floods of connections against the bookkeeping alone: thousands, at instants of our own."""

import random

import pytest

from tandem.api.connections.table import (
    RESERVE_HEAD_S,
    ConnectionCapacity,
    ConnectionPlace,
    ConnectionTable,
    UnfinishedHeads,
    client_network,
)

ROOM = ConnectionCapacity(normal=400, per_address=100, reserve=16)
HEAD_S = 10.0
GIVES_WAY_S = 1.0


@pytest.fixture
def table() -> ConnectionTable:
    return ConnectionTable(HEAD_S, GIVES_WAY_S)


def flood(table, count, address, now_s):
    """Who stays of so many new connections."""
    there = []
    for index in range(count):
        place, evicted = table.connection_arrived((address, now_s, index), address, ROOM, now_s)
        if place is not ConnectionPlace.NONE:
            there.append((address, now_s, index))
        if evicted in there:
            there.remove(evicted)
    return there


def test_5000_of_one_address_leave_room_for_others_and_for_probes(table):
    there = flood(table, 5000, "bad", 0.0)
    assert len(there) == len(table) == ROOM.per_address + ROOM.reserve
    # At once a probe of the same address is heard, and others are served as ever.
    assert table.connection_arrived("probe", "bad", ROOM, 0.1)[0] is ConnectionPlace.RESERVE
    assert table.connection_arrived("client", "good", ROOM, 0.1) == (ConnectionPlace.NORMAL, None)
    # A moment later idle ones give way to whoever comes, the oldest first.
    place, evicted = table.connection_arrived("late", "bad", ROOM, GIVES_WAY_S)
    assert (place, evicted) == (ConnectionPlace.NORMAL, there[0])


def test_idle_ones_of_many_addresses_give_way_when_all_is_full(table):
    for number in range(8):
        flood(table, 50, f"bad-{number}", 0.0)
    assert table.connection_arrived("burst", "good", ROOM, 0.0)[0] is ConnectionPlace.RESERVE
    assert table.connection_arrived("client", "good", ROOM, GIVES_WAY_S) == (
        ConnectionPlace.NORMAL,
        ("bad-0", 0.0, 0),
    )


def test_who_is_owed_an_answer_never_gives_way(table):
    for connection in flood(table, 100, "busy", 0.0):
        table.head_completed(connection)
    assert table.connection_arrived("more", "busy", ROOM, 99.0)[0] is ConnectionPlace.RESERVE
    assert not table.overdue(99.0)
    table.awaits_head(("busy", 0.0, 7), 100.0)
    assert table.connection_arrived("later", "busy", ROOM, 102.0) == (
        ConnectionPlace.NORMAL,
        ("busy", 0.0, 7),
    )


def test_the_reserve_gives_the_last_comer_its_chance_unless_all_are_at_work(table):
    there = flood(table, 116, "bad", 0.0)
    assert table.connection_arrived("probe", "bad", ROOM, 0.0) == (
        ConnectionPlace.RESERVE,
        there[100],
    )
    table.head_completed("probe")
    assert len(flood(table, 1000, "bad", 0.5)) <= ROOM.reserve
    for index in range(1000):
        table.head_completed(("bad", 0.5, index))
    assert table.connection_arrived("nowhere", "bad", ROOM, 0.6) == (ConnectionPlace.NONE, None)


def test_everybody_s_time_is_over_once_and_in_the_reserve_sooner(table):
    there = flood(table, 116, "bad", 0.0)
    assert table.next_wakeup_s() == RESERVE_HEAD_S
    assert table.overdue(RESERVE_HEAD_S) == there[100:]
    assert table.next_wakeup_s() == HEAD_S
    assert table.overdue(HEAD_S) == there[:100]
    assert table.overdue(99.0) == []
    assert table.next_wakeup_s() is None
    for connection in there:
        table.connection_left(connection)
    assert len(table) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_bound_is_ever_exceeded(table, seed):
    chance = random.Random(seed)
    capacity = ConnectionCapacity(chance.randint(1, 12), chance.randint(1, 6), chance.randint(0, 4))
    now_s, live = 0.0, {}
    for number in range(600):
        now_s += chance.choice((0.0, 0.1, 3.0))
        match chance.randint(0, 5):
            case 0 | 1 | 2:
                address = f"a{chance.randint(0, 4)}"
                place, evicted = table.connection_arrived(number, address, capacity, now_s)
                if evicted is not None:
                    # Only who was not at work.
                    assert live.pop(evicted)[2]
                if place is not ConnectionPlace.NONE:
                    live[number] = (place, address, True)
            case 3 | 4 if live:
                who = chance.choice(sorted(live))
                waits = not live[who][2]
                live[who] = (*live[who][:2], waits)
                table.awaits_head(who, now_s) if waits else table.head_completed(who)
            case _:
                for who in [*table.overdue(now_s), *live][:1]:
                    table.connection_left(who)
                    del live[who]
        normal = [address for place, address, _ in live.values() if place is ConnectionPlace.NORMAL]
        assert len(normal) <= capacity.normal
        assert all(normal.count(address) <= capacity.per_address for address in normal)
        assert len(live) - len(normal) <= capacity.reserve
        assert len(table) == len(live)


def test_a_client_of_ipv6_has_one_share_for_all_its_addresses():
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff:1")
    assert client_network("2001:db8:0:1::1") != client_network("2001:db8::1")
    assert client_network("::ffff:192.0.2.7") == client_network("192.0.2.7") == "192.0.2.7"


def test_unfinished_heads_are_bounded_in_sum_and_the_oldest_goes():
    heads: UnfinishedHeads[int] = UnfinishedHeads(1 << 20, 4 << 10)
    there: set[int] = set()
    for number in range(8192):
        # Small ones cost nobody a place.
        assert heads.holds_unparsed(-1 - number, 4 << 10) == []
        for count in (30 << 10, 60 << 10):
            there.add(number)
            cut = heads.holds_unparsed(number, count)
            assert cut == sorted(there)[: len(cut)]
            there -= set(cut)
        assert heads.held_bytes <= 1 << 20
    assert len(there) == (1 << 20) // (60 << 10)
    for number in there:
        heads.holds_unparsed(number, 0)
    assert heads.held_bytes == 0
