"""The fair queue: priority classes, weighted fair shares of tenants, and a bound on waiting.

Reserves come first, then the priority of the class, then the tenant that got least; within a tenant
the client's own priority, the earliest deadline and the order of arrival. Who waited too long waits
for its tenant's turn alone. Nothing that a client chooses goes before another tenant. What runs in
the background goes when nobody else waits.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from msgspec.structs import replace

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.keyed_heap import KeyedHeap
from tandem.policy.qos.classes import Classes
from tandem.policy.views import RequestView

# A prompt token is computed beside thousands of others, an output token in a step of its own:
# the weights of the paper's evaluation.
INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0


class TokenCounters:
    """Counters of tenants at each priority, in weighted tokens; they only grow. Priorities are
    those of classes, never what a client chose: there are no more counters than tenants times
    classes.

    Service counts at every priority alike, lifts only where the tenant came back: a lift among
    urgent requests is no reason to wait longer among the others.
    """

    __slots__ = ("_last_left", "_lifts", "_service", "_weights")

    def __init__(self, weights: Mapping[str, float]) -> None:
        """`weights` are shares of tenants against each other, 1 where none is given. Raises
        `InvalidConfiguration`."""
        self._weights: dict[str, float] = {}
        self._service: dict[str, float] = {}
        self._lifts: dict[tuple[int, str], float] = {}
        self._last_left: dict[int, str] = {}
        self.reweigh(weights)

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Other weights from now on: service got before counts as it was counted. Raises as the
        constructor."""
        for tenant, weight in sorted(weights.items()):
            if not weight > 0:
                raise InvalidConfiguration(
                    f"weight of tenant {tenant} is {weight:g}; choose more than 0"
                )
        self._weights = dict(weights)

    def of(self, tenant: str, priority: int) -> float:
        return self._service.get(tenant, 0.0) + self._lifts.get((priority, tenant), 0.0)

    def charge(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        tokens = INPUT_WEIGHT * input_tokens + OUTPUT_WEIGHT * output_tokens
        weight = self._weights.get(tenant, 1.0)
        self._service[tenant] = self._service.get(tenant, 0.0) + tokens / weight

    def left(self, tenant: str, priority: int) -> None:
        """The tenant has nothing waiting at this priority any more."""
        self._last_left[priority] = tenant

    def lift(self, tenant: str, priority: int, waiting: Iterable[float]) -> None:
        """The tenant comes back (the paper's algorithm 2): it starts no lower than the least
        counter that waits at this priority, or than the last that left when none waits. So nobody
        saves up credit while idle."""
        level = min(waiting, default=None)
        if level is None:
            level = self.of(self._last_left.get(priority, tenant), priority)
        lacking = level - self.of(tenant, priority)
        if lacking > 0:
            self._lifts[priority, tenant] = self._lifts.get((priority, tenant), 0.0) + lacking


class Turns:
    """Turns of accounts: the order in which requests of several accounts go, each request counting
    as one.

    Start-time fair queueing (Goyal et al., SIGCOMM 1996) with requests as the unit: an account's
    next request has its turn after its last one, but never before the turn that was reached. One
    account alone goes in order of arrival. Accounts without anything ahead of the reached turn are
    forgotten."""

    def __init__(self) -> None:
        self._reached = 0
        self._last: dict[str, int] = {}
        self._forget_at = 64

    def __len__(self) -> int:
        return len(self._last)

    def next_of(self, account: str) -> int:
        """The turn of one more request; of equal ones the first to arrive goes first."""
        turn = max(self._reached, self._last.get(account, -1) + 1)
        self._last[account] = turn
        if len(self._last) >= self._forget_at:
            # What lies behind says nothing: the next turn is the reached one anyway.
            self._last = {name: last for name, last in self._last.items() if last >= self._reached}
            self._forget_at = 2 * len(self._last) + 64
        return turn

    def taken(self, turn: int) -> None:
        """A request of this turn goes."""
        self._reached = max(self._reached, turn)


_NEVER_NS = 2**63 - 1

Arrival = tuple[int, int]
# The client's priority, deadline, arrival, serial.
Due = tuple[int, int, int, int]
Served = tuple[float, str]


@dataclass(slots=True)
class Lane:
    """Waiting requests of one class, those that waited too long or all others: `tenants` by
    service, each one's `requests` in the order in which they go."""

    tenants: KeyedHeap[Served, str] = field(default_factory=KeyedHeap)
    requests: dict[str, KeyedHeap[Due, str]] = field(default_factory=dict)

    def add(self, request: RequestView, due: Due, served: float) -> None:
        tenant = request.tenant
        if tenant not in self.requests:
            self.requests[tenant] = KeyedHeap()
            self.tenants.place(tenant, (served, tenant))
        self.requests[tenant].place(request.request_id, due)

    def remove(self, request: RequestView) -> None:
        requests = self.requests[request.tenant]
        requests.discard(request.request_id)
        if not len(requests):
            del self.requests[request.tenant]
            self.tenants.discard(request.tenant)


@dataclass(slots=True)
class ClassQueue:
    """All that waits of one class, of this `priority`: `arrivals` are of the `fresh` ones, and
    `in_background` counts those of the `background`."""

    priority: int
    fresh: Lane = field(default_factory=Lane)
    overdue: Lane = field(default_factory=Lane)
    background: Lane = field(default_factory=Lane)
    arrivals: KeyedHeap[Arrival, str] = field(default_factory=KeyedHeap)
    waiting: int = 0
    in_background: int = 0

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """Of those that somebody waits for."""
        return self.fresh, self.overdue

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything of it."""
        return self.waiting == self.in_background


class FairQueue:
    """The queue before admission to a fleet or a worker. Pure: it remembers, and reads no clock.

    Tenants share by virtual token counters (VTC; Sheng et al., OSDI 2024): `charge` counts prompt
    tokens once and output tokens twice, divided by the tenant's weight, and the least counter goes
    first. A tenant that comes back from idleness is lifted to the least counter that waits at its
    priority, so that nobody saves up credit. Charge the prompt when a request is taken and the
    output as it grows: late charges make the shares uneven by what is not charged yet.

    What waits longer than `max_wait_s` counts as if its class were of the highest priority that
    waits, and goes before whatever else its tenant has; other tenants keep their shares, however
    much of somebody's backlog is old. Each operation is O(log n) in requests and tenants, and
    linear in the few classes. What is remembered beside the requests is by class and tenant.
    """

    def __init__(
        self,
        classes: Classes,
        weights: Mapping[str, float] | None = None,
        max_wait_s: float = 30.0,
    ) -> None:
        """`weights` are shares of tenants against each other, 1 where none is given. Raises
        `InvalidConfiguration`."""
        # Tenants that wait at other gateways, by class.
        self.waiting_elsewhere: Mapping[str, Iterable[str]] = {}
        self._classes = classes
        self._counters = TokenCounters(weights or {})
        self._max_wait_ns = _wait_ns(max_wait_s)
        self._requests: dict[str, RequestView] = {}
        self._queues: dict[str, ClassQueue] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def reconfigure(
        self, classes: Classes, weights: Mapping[str, float], max_wait_s: float
    ) -> None:
        """Others from now on, whoever waits. Those whose class has another priority now, or is
        gone, line up there by their arrival, as if they had come back; all others keep their
        places, and tenants what they were counted. Raises as the constructor."""
        self._max_wait_ns = _wait_ns(max_wait_s)
        self._counters.reweigh(weights)
        moved: list[RequestView] = []
        for request in list(self._requests.values()):
            name = classes.standing(request.service_class, request.tenant)
            priority = classes.named(name).priority
            if name != request.service_class:
                self.remove(request.request_id)
                moved.append(replace(request, service_class=name))
            elif priority != self._queues[name].priority:
                moved.append(self.remove(request.request_id))
        self._classes = classes
        for request in sorted(moved, key=lambda each: (each.arrival_ns, each.serial)):
            self.push(request)

    def __iter__(self) -> Iterator[RequestView]:
        """All that wait, in no order that counts."""
        return iter(self._requests.values())

    def waiting(self) -> dict[str, int]:
        """Requests that wait, by class."""
        return {name: queue.waiting for name, queue in self._queues.items()}

    def awaited(self) -> dict[str, int]:
        """The same of those that somebody waits for."""
        counts = {n: queue.waiting - queue.in_background for n, queue in self._queues.items()}
        return {name: count for name, count in counts.items() if count}

    def charge(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        """Count service that the tenant got."""
        self._counters.charge(tenant, input_tokens, output_tokens)

    def served_elsewhere(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        """Count service that the tenant got at another gateway."""
        self._counters.charge(tenant, input_tokens, output_tokens)
        if input_tokens:
            # A request has left the queue there: who comes here next is no further behind.
            for priority in self._classes.priorities:
                self._counters.left(tenant, priority)

    def push(self, request: RequestView) -> None:
        """Add a request whose id is not waiting."""
        assert request.request_id not in self._requests
        name, tenant = request.service_class, request.tenant
        if name not in self._queues:
            self._queues[name] = ClassQueue(self._classes.named(name).priority)
        queue = self._queues[name]
        priority = queue.priority
        if not self._waits(tenant, priority):
            waiting = [lane for lane in self._lanes_at(priority) if len(lane.tenants)]
            least = [self._least_served(lane, priority)[0] for lane in waiting]
            least += self._served_of_others(tenant, priority)
            self._counters.lift(tenant, priority, least)
        deadline_ns = _NEVER_NS if request.deadline_ns is None else request.deadline_ns
        due = (request.priority, deadline_ns, request.arrival_ns, request.serial)
        served = self._counters.of(tenant, priority)
        if request.in_background:
            queue.background.add(request, due, served)
            queue.in_background += 1
        else:
            queue.fresh.add(request, due, served)
            queue.arrivals.place(request.request_id, (request.arrival_ns, request.serial))
        queue.waiting += 1
        self._requests[request.request_id] = request

    def remove(self, request_id: str) -> RequestView:
        """Take out a request that waits, when its client left say."""
        request = self._requests.pop(request_id)
        queue = self._queues[request.service_class]
        if request.in_background:
            queue.background.remove(request)
            queue.in_background -= 1
        elif request_id in queue.arrivals:
            queue.arrivals.discard(request_id)
            queue.fresh.remove(request)
        else:
            queue.overdue.remove(request)
        queue.waiting -= 1
        if not queue.waiting:
            del self._queues[request.service_class]
        if not self._waits(request.tenant, queue.priority):
            self._counters.left(request.tenant, queue.priority)
        return request

    def first(
        self,
        in_use: Mapping[str, int],
        capacity: int,
        now_ns: int,
        without: Set[str] = frozenset(),
    ) -> RequestView | None:
        """The request that goes next, `without` those of some classes; None when nobody waits or no
        slot is free. `in_use` counts running requests by class."""
        if not self._requests or sum(in_use.values()) >= capacity:
            return None
        usable = [name for name in self._queues if name not in without]
        names = [name for name in usable if not self._queues[name].is_idle]
        if not names:
            return self._first_in_background([self._queues[name] for name in usable])
        below = [n for n in names if self._classes.below_reserve(n, in_use, capacity)]
        entitled = [self._queues[name] for name in below or names]
        for queue in entitled:
            self._age(queue, now_ns)
        return self._requests[self._fairest(entitled)]

    def _first_in_background(self, queues: list[ClassQueue]) -> RequestView | None:
        """The tenant's that got least, of whichever class."""
        lanes = [(queue.background, queue.priority) for queue in queues if queue.waiting]
        if not lanes:
            return None
        (_, tenant), lane = min(
            ((self._least_served(lane, priority), lane) for lane, priority in lanes),
            key=lambda each: each[0],
        )
        first = lane.requests[tenant].first_entry()
        assert first
        return self._requests[first[1]]

    def _age(self, queue: ClassQueue, now_ns: int) -> None:
        """Those that wait too long by now go by their age from here on."""
        while oldest := queue.arrivals.first_entry():
            (arrival_ns, serial), request_id = oldest
            if now_ns - arrival_ns <= self._max_wait_ns:
                return
            request = self._requests[request_id]
            queue.arrivals.discard(request_id)
            queue.fresh.remove(request)
            served = self._counters.of(request.tenant, queue.priority)
            queue.overdue.add(request, (0, 0, arrival_ns, serial), served)

    def _fairest(self, queues: list[ClassQueue]) -> str:
        """The tenant that got least of those who have something urgent or overdue; of what it has
        there, what is overdue, the oldest first."""
        urgent = min(queue.priority for queue in queues)
        fresh = [queue.fresh for queue in queues if queue.priority == urgent]
        overdue = [queue.overdue for queue in queues]
        least = [
            self._least_served(lane, queue.priority)
            for queue in queues
            for lane in queue.lanes
            if len(lane.tenants) and (lane is queue.overdue or queue.priority == urgent)
        ]
        _, tenant = min(least)
        for lanes in (overdue, fresh):
            own = [lane.requests[tenant] for lane in lanes if tenant in lane.requests]
            firsts = [first for requests in own if (first := requests.first_entry())]
            if firsts:
                return min(firsts)[1]
        raise AssertionError(f"tenant {tenant} waits nowhere")

    def _least_served(self, lane: Lane, priority: int) -> Served:
        """Counters only grow, so a lane learns of a charge when the tenant comes to its top."""
        while True:
            first = lane.tenants.first_entry()
            assert first
            key, tenant = first
            served = (self._counters.of(tenant, priority), tenant)
            if key == served:
                return served
            lane.tenants.place(tenant, served)

    def _served_of_others(self, tenant: str, priority: int) -> Iterator[float]:
        """The counters of other tenants that wait at this priority at other gateways."""
        for name, tenants in self.waiting_elsewhere.items():
            if self._classes.named(name).priority == priority:
                yield from (self._counters.of(each, priority) for each in tenants if each != tenant)

    def _waits(self, tenant: str, priority: int) -> bool:
        """Whether the tenant has a request in any class of this priority."""
        return any(
            tenant in lane.requests
            for queue in self._queues.values()
            if queue.priority == priority
            for lane in (*queue.lanes, queue.background)
        )

    def _lanes_at(self, priority: int) -> Iterator[Lane]:
        for queue in self._queues.values():
            if queue.priority == priority:
                yield from queue.lanes


def _wait_ns(max_wait_s: float) -> int:
    """Raises `InvalidConfiguration`."""
    if not max_wait_s >= 0:
        raise InvalidConfiguration(f"max_wait_s is {max_wait_s:g}; choose 0 or more")
    return round(max_wait_s * 1e9)
