"""The network: exact instants in simple cases, a duel with exact fractions, and laws."""

from fractions import Fraction
from math import inf

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tandem.facts.errors import InvalidConfiguration
from tandem.twin.network.model import Network
from tests.twin.slow_network import SlowNetwork, SlowTransfer, max_min_rates

SECOND = 10**9
# The NIC of an H100: 50 GB/s one way.
NIC = 50e9
PORTS = {"a/out": NIC, "b/out": NIC, "a/in": NIC, "b/in": NIC / 2, "pool": 7e9}


def drain(network: Network, until_ns: float = inf) -> list[tuple[int, int]]:
    """Everything that still arrives, with its instant."""
    arrivals = []
    while (now_ns := network.next_event_ns()) is not None and now_ns <= until_ns:
        arrivals += [(now_ns, transfer_id) for transfer_id in network.advance(now_ns)]
    return arrivals


def test_alone_a_transfer_takes_latency_plus_bytes_over_bandwidth():
    network = Network(PORTS)
    network.start(1, ("a/out", "b/in"), 1e9, 5, latency_ns=10_000)
    assert network.next_event_ns() == 10_005
    assert network.rate_bytes_per_s(1) == 0
    assert network.advance(10_005) == []
    assert network.rate_bytes_per_s(1) == 25e9
    assert drain(network) == [(10_005 + 40_000_000, 1)]


@given(moved_bytes=st.integers(0, 1 << 40), latency_ns=st.integers(0, 1 << 40))
def test_the_instant_is_exact_to_the_nanosecond(moved_bytes, latency_ns):
    network = Network({"nic": NIC})
    network.start(0, ("nic",), moved_bytes, 3, latency_ns=latency_ns)
    ((instant_ns, _),) = drain(network)
    exact_ns = 3 + latency_ns + Fraction(moved_bytes * SECOND, int(NIC))
    assert abs(instant_ns - exact_ns) <= Fraction(1, 2)


def test_two_that_share_a_port_have_half_each_and_then_one_has_all():
    network = Network(PORTS)
    network.start(1, ("a/out", "a/in"), NIC, 0)
    network.start(2, ("a/out", "b/in"), NIC / 4, 0)
    assert network.rate_bytes_per_s(1) == network.rate_bytes_per_s(2) == NIC / 2
    # 2 is through after half a second; 1 has three quarters left and the port to itself.
    assert drain(network) == [(SECOND // 2, 2), (SECOND // 2 + 3 * SECOND // 4, 1)]


def test_those_that_end_together_end_together():
    network = Network(PORTS)
    for transfer_id in (5, 3, 4):
        network.start(transfer_id, ("a/out",), NIC, 0)
    assert network.next_event_ns() == 3 * SECOND
    assert network.advance(3 * SECOND) == [3, 4, 5]
    assert network.next_event_ns() is None


def test_nothing_to_move_arrives_when_its_latency_is_over():
    network = Network(PORTS)
    network.start(2, ("pool",), 0, 7)
    network.start(1, ("pool",), 0, 7, latency_ns=2)
    assert network.next_event_ns() == 7
    assert drain(network) == [(7, 2), (9, 1)]


def test_an_infinite_port_is_never_in_the_way():
    network = Network({"wire": float("inf"), "nic": NIC})
    network.start(1, ("wire",), 1e12, 0)
    network.start(2, ("wire", "nic"), NIC, 0)
    assert drain(network) == [(0, 1), (SECOND, 2)]


def test_a_slow_link_stretches_what_is_left():
    network = Network(PORTS)
    network.start(1, ("a/out",), NIC, 0)
    network.set_factor("a/out", 0.1, SECOND // 2)
    network.set_factor("a/out", 1.0, SECOND // 2 + SECOND)
    # Half before, a tenth while it was slow, 0.4 after.
    assert drain(network) == [(SECOND // 2 + SECOND + 4 * SECOND // 10, 1)]


def test_what_is_stalled_waits_and_takes_nothing_from_others():
    network = Network(PORTS)
    network.start(1, ("a/out", "a/in"), NIC, 0)
    network.start(2, ("a/out", "b/in"), NIC / 4, 0)
    network.set_factor("b/in", 0.0, 0)
    assert network.rate_bytes_per_s(1) == NIC
    assert network.rate_bytes_per_s(2) == 0
    assert network.next_event_ns() == SECOND
    assert network.advance(2 * SECOND) == [1]
    assert network.next_event_ns() is None
    network.set_factor("b/in", 1.0, 3 * SECOND)
    assert drain(network) == [(3 * SECOND + SECOND // 2, 2)]


def test_a_cut_stalls_only_what_crosses_it_until_the_last_is_healed():
    network = Network(PORTS)
    network.start(1, ("a/out", "b/in"), NIC / 2, 0)
    network.start(2, ("b/out", "a/in"), NIC / 2, 0)
    network.start(3, ("a/out", "pool"), 0.7e9, 0, latency_ns=100)
    network.cut("one", ("a/out",), ("b/in",), 0)
    network.cut("two", ("b/in", "b/out"), ("a/out", "a/in"), SECOND // 4)
    network.heal("one", SECOND // 2)
    assert network.rate_bytes_per_s(1) == network.rate_bytes_per_s(2) == 0
    network.start(4, ("b/out", "a/in"), 1, SECOND)
    assert network.rate_bytes_per_s(4) == 0
    assert network.advance(SECOND) == [3]
    network.cancel(4, SECOND)
    network.heal("two", 2 * SECOND)
    assert drain(network) == [(2 * SECOND + SECOND // 4, 2), (3 * SECOND, 1)]


def test_a_failed_port_kills_what_crosses_it_and_serves_again():
    network = Network(PORTS)
    network.start(3, ("a/out", "b/in"), NIC, 0)
    network.start(1, ("b/out", "b/in"), NIC / 2, 0, latency_ns=2 * SECOND)
    network.start(2, ("a/out", "a/in"), NIC, 0)
    assert network.fail_port("b/in", SECOND) == [1, 3]
    assert (network.ledger.wasted_bytes, network.ledger.dropped_bytes) == (NIC / 2, NIC)
    network.start(3, ("a/out", "b/in"), NIC / 4, SECOND)
    # 2 has half left; a quarter goes beside the new 3, the last one alone.
    assert drain(network) == [(3 * SECOND // 2, 3), (7 * SECOND // 4, 2)]


def test_cancelling_frees_the_bandwidth_and_comes_too_late_after_the_last_byte():
    network = Network(PORTS)
    network.start(1, ("a/out",), NIC, 0)
    network.start(2, ("a/out",), NIC, 0)
    assert network.moving_bytes(SECOND) == NIC
    assert network.cancel(1, SECOND)
    assert network.moving_bytes(SECOND) == NIC / 2
    assert network.next_event_ns() == SECOND + SECOND // 2
    assert not network.cancel(2, 2 * SECOND)
    assert network.next_event_ns() == 2 * SECOND
    assert network.advance(2 * SECOND) == [2]
    assert not network.cancel(2, 2 * SECOND)


def test_a_port_may_come_later_and_must_have_a_bandwidth():
    network = Network({})
    network.add_port("late", 1e9)
    network.start(1, ("late",), 1e9, 0)
    assert drain(network) == [(SECOND, 1)]
    with pytest.raises(InvalidConfiguration, match=r"bandwidth of dead must be greater than 0"):
        network.add_port("dead", 0)


def test_a_cut_holds_for_ports_that_come_while_it_lasts():
    network = Network({"a/out": NIC})
    network.cut("cut", ("late/in",), ("a/out",), 0)
    network.add_port("late/in", NIC)
    network.start(1, ("a/out", "late/in"), NIC, 0)
    network.heal("cut", SECOND)
    assert drain(network) == [(2 * SECOND, 1)]


def test_time_never_runs_back():
    network = Network(PORTS)
    network.advance(10)
    with pytest.raises(AssertionError, match="time never runs back"):
        network.start(1, ("pool",), 1, 9)


# A life of the network: what happens, and how long after the thing before.
NAMES = sorted(PORTS)
GAPS = st.integers(0, SECOND // 4)
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple)
STARTS = st.tuples(
    st.just("start"), GAPS, PATHS, st.integers(0, 10**10), st.sampled_from((0, 0, 10_000, SECOND))
)
OTHERS = st.one_of(
    st.tuples(st.just("cancel"), GAPS, st.integers(0, 12)),
    st.tuples(st.just("fail"), GAPS, st.sampled_from(NAMES)),
    st.tuples(st.just("factor"), GAPS, st.sampled_from(NAMES), st.sampled_from((0.0, 0.25, 1.0))),
    st.tuples(st.just("cut"), GAPS, st.permutations(NAMES), st.integers(1, 4)),
    st.tuples(st.just("heal"), GAPS),
    st.tuples(st.just("look"), GAPS),
)
LIVES = st.lists(st.one_of(STARTS, STARTS, OTHERS), max_size=14)


class Life:
    """Performs a life on a network and on its slow twin. `attentive`: it goes from event to event;
    else arrivals are told whenever somebody looks."""

    def __init__(self, attentive: bool) -> None:
        self.network = Network(PORTS)
        self.slow = SlowNetwork(dict(PORTS))
        self.attentive = attentive
        self.now_ns = 0
        self.started: dict[int, int] = {}
        self.arrivals: list[tuple[int, int]] = []

    def do(self, step) -> None:
        verb, gap_ns, *rest = step
        self.now_ns += gap_ns
        self.slow.run_until(self.now_ns)
        if self.attentive:
            self.arrivals += drain(self.network, self.now_ns)
        getattr(self, verb)(*rest)

    def start(self, path, moved_bytes, latency_ns):
        number = len(self.started)
        self.started[number] = moved_bytes
        self.network.start(number, path, moved_bytes, self.now_ns, latency_ns=latency_ns)
        ready_ns = self.now_ns + latency_ns
        self.slow.transfers[number] = SlowTransfer(path, Fraction(moved_bytes), ready_ns)

    def cancel(self, number):
        assert self.network.cancel(number, self.now_ns) == (number in self.slow.transfers)
        self.slow.transfers.pop(number, None)

    def fail(self, port):
        died = sorted(n for n, t in self.slow.transfers.items() if port in t.path)
        assert self.network.fail_port(port, self.now_ns) == died
        for number in died:
            del self.slow.transfers[number]

    def factor(self, port, factor):
        self.network.set_factor(port, factor, self.now_ns)
        self.slow.factors[port] = factor

    def cut(self, names, sides):
        if not self.slow.cuts:
            self.slow.cuts["cut"] = (names[:sides], names[sides:])
            self.network.cut("cut", *self.slow.cuts["cut"], self.now_ns)

    def heal(self):
        if self.slow.cuts:
            self.slow.cuts.clear()
            self.network.heal("cut", self.now_ns)

    def look(self):
        told = self.network.advance(self.now_ns)
        self.arrivals += [(self.now_ns, transfer_id) for transfer_id in told]

    def end(self) -> "Life":
        """Repair everything, and wait for all that still moves."""
        self.heal()
        for name in NAMES:
            self.factor(name, 1.0)
        self.arrivals += drain(self.network)
        self.slow.run_until(self.now_ns + 10**13)
        return self


def live(life, attentive: bool) -> Life:
    clock = Life(attentive)
    for step in life:
        clock.do(step)
    return clock.end()


@settings(max_examples=150)
@given(LIVES)
def test_a_duel_with_every_rate_computed_anew_in_exact_fractions(life):
    clock = Life(attentive=True)
    for step in life:
        clock.do(step)
        for number, transfer in clock.slow.transfers.items():
            exact = float(clock.slow.rate(transfer) * SECOND)
            assert clock.network.rate_bytes_per_s(number) == pytest.approx(exact)
    clock.end()
    instants = {number: instant_ns for instant_ns, number in clock.slow.arrived}
    assert {number for _, number in clock.arrivals} == set(instants)
    # A float's last bit may tip an instant to the next nanosecond, and the rest follow.
    for instant_ns, number in clock.arrivals:
        assert abs(instant_ns - instants[number]) <= 3


@given(LIVES)
def test_how_often_one_looks_changes_nothing_but_when_arrivals_are_seen(life):
    attentive, lazy = live(life, attentive=True), live(life, attentive=False)
    assert [n for _, n in attentive.arrivals] == [n for _, n in lazy.arrivals]
    assert attentive.network.ledger == lazy.network.ledger
    told_ns = {number: now_ns for now_ns, number in lazy.arrivals}
    assert all(instant_ns <= told_ns[number] for instant_ns, number in attentive.arrivals)


@given(LIVES)
def test_bytes_are_conserved(life):
    """What the rates moved, summed up from outside, is what the books say."""
    clock = Life(attentive=True)
    moved = 0.0
    for step in [*life, ("look", 10 * SECOND)]:
        end_ns = clock.now_ns + step[1]
        at_ns = clock.now_ns
        while at_ns < end_ns:
            event_ns = clock.network.next_event_ns()
            to_ns = end_ns if event_ns is None else min(end_ns, max(event_ns, at_ns))
            rates = [clock.network.rate_bytes_per_s(n) for n in clock.network._transfers]
            moved += sum(rates) * (to_ns - at_ns) / SECOND
            clock.arrivals += [(to_ns, number) for number in clock.network.advance(to_ns)]
            at_ns = to_ns
        clock.do(step)
        ledger, network = clock.network.ledger, clock.network
        under_way = sum(clock.started[number] for number in network._transfers)
        stopped = ledger.wasted_bytes + ledger.dropped_bytes
        assert ledger.started_bytes == sum(clock.started.values())
        assert ledger.finished_bytes + stopped + under_way == pytest.approx(ledger.started_bytes)
        arrived = ledger.finished_bytes + ledger.wasted_bytes
        partly = under_way - network.moving_bytes(clock.now_ns)
        # An end falls on a whole nanosecond, at up to 50 bytes each.
        assert arrived + partly == pytest.approx(moved, rel=1e-9, abs=50 * 14)


@given(LIVES)
def test_no_port_gives_more_than_it_has_and_nobody_more_than_max_min_fairness(life):
    clock = Life(attentive=True)
    for step in life:
        clock.do(step)
        paths = {n: t.path for n, t in clock.slow.transfers.items() if t in clock.slow.moving()}
        rates = {number: clock.network.rate_bytes_per_s(number) for number in paths}
        room = {port: PORTS[port] * clock.slow.factors.get(port, 1.0) for port in PORTS}
        for port, bytes_per_s in room.items():
            used = sum(rate for number, rate in rates.items() if port in paths[number])
            assert used <= bytes_per_s * (1 + 1e-12)
        fair = max_min_rates(room, paths)
        assert all(rates[number] <= fair[number] * (1 + 1e-12) for number in paths)
