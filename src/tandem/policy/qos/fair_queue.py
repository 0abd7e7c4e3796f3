"""Who is served next when all may not be served at once.

Reserves come first, then whoever waited too long, then priority, then the tenant that got least,
then the earliest deadline, then the order of arrival.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.qos.classes import Classes
from tandem.policy.qos.counters import TokenCounters
from tandem.policy.qos.ordered import Ordered
from tandem.policy.views import RequestView

_NEVER_NS = 2**63 - 1

Arrival = tuple[int, int]
Due = tuple[int, int, int]
Served = tuple[float, str]


@dataclass(slots=True)
class Lane:
    """The waiting requests of one class at one priority: `tenants` by service, each one's
    `requests` by deadline."""

    tenants: Ordered[Served, str] = field(default_factory=Ordered)
    requests: dict[str, Ordered[Due, str]] = field(default_factory=dict)


class FairQueue:
    """The queue before admission to a fleet or a worker. Pure: it remembers, and reads no clock.

    Tenants share by virtual token counters (VTC; Sheng et al., OSDI 2024): `charge` counts prompt
    tokens once and output tokens twice, divided by the tenant's weight, and the least counter goes
    first. A tenant that comes back from idleness is lifted to the least counter that waits at its
    priority, so that nobody saves up credit. Charge the prompt when a request is taken and the
    output as it grows: late charges make the shares uneven by what is not charged yet.

    Whoever waits longer than `max_wait_s` goes before everybody who is not below a reserve. Each
    operation is O(log n) in requests and tenants, and linear in the few classes.
    """

    def __init__(
        self,
        classes: Classes,
        weights: Mapping[str, float] | None = None,
        max_wait_s: float = 30.0,
    ) -> None:
        """`weights` are shares of tenants against each other, 1 where none is given. Raises
        `InvalidConfiguration`."""
        self._classes = classes
        self._counters = TokenCounters(weights or {})
        if not max_wait_s >= 0:
            raise InvalidConfiguration(f"max_wait_s is {max_wait_s:g}; choose 0 or more")
        self._max_wait_ns = round(max_wait_s * 1e9)
        self._requests: dict[str, RequestView] = {}
        self._arrivals: dict[str, Ordered[Arrival, str]] = {}
        self._priorities: dict[str, Ordered[tuple[int], int]] = {}
        self._lanes: dict[tuple[str, int], Lane] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def waiting(self) -> dict[str, int]:
        """Requests that wait, by class."""
        return {name: len(arrivals) for name, arrivals in self._arrivals.items() if len(arrivals)}

    def charge(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        """Count service that the tenant got."""
        self._counters.charge(tenant, input_tokens, output_tokens)

    def push(self, request: RequestView) -> None:
        """Add a request whose id is not waiting."""
        assert request.request_id not in self._requests
        name, priority, tenant = request.service_class, request.priority, request.tenant
        arrivals = self._arrivals.setdefault(name, Ordered())
        arrivals.put(request.request_id, (request.arrival_ns, request.serial))
        lane = self._lanes.setdefault((name, priority), Lane())
        if not len(lane.tenants):
            self._priorities.setdefault(name, Ordered()).put(priority, (priority,))
        if tenant not in lane.requests:
            if not self._waits(tenant, priority):
                least = [self._least_served(each, priority) for each in self._at(priority)]
                self._counters.lift(tenant, priority, [served for served, _ in least])
            lane.requests[tenant] = Ordered()
            lane.tenants.put(tenant, (self._counters.of(tenant, priority), tenant))
        deadline_ns = _NEVER_NS if request.deadline_ns is None else request.deadline_ns
        due = (deadline_ns, request.arrival_ns, request.serial)
        lane.requests[tenant].put(request.request_id, due)
        self._requests[request.request_id] = request

    def remove(self, request_id: str) -> RequestView:
        """Take out a request that waits, when its client left say."""
        request = self._requests.pop(request_id)
        name, priority, tenant = request.service_class, request.priority, request.tenant
        self._arrivals[name].remove(request_id)
        lane = self._lanes[name, priority]
        lane.requests[tenant].remove(request_id)
        if not len(lane.requests[tenant]):
            del lane.requests[tenant]
            lane.tenants.remove(tenant)
            if not self._waits(tenant, priority):
                self._counters.left(tenant, priority)
        if not len(lane.tenants):
            del self._lanes[name, priority]
            self._priorities[name].remove(priority)
        return request

    def next(self, in_use: Mapping[str, int], capacity: int, now_ns: int) -> RequestView | None:
        """Take out the request that goes next; see `first`."""
        chosen = self.first(in_use, capacity, now_ns)
        return None if chosen is None else self.remove(chosen.request_id)

    def first(self, in_use: Mapping[str, int], capacity: int, now_ns: int) -> RequestView | None:
        """The request that goes next; None when nobody waits or no slot is free. `in_use` counts
        running requests by class."""
        if not self._requests or sum(in_use.values()) >= capacity:
            return None
        waiting = [name for name, arrivals in self._arrivals.items() if len(arrivals)]
        below = [n for n in waiting if self._classes.below_reserve(n, in_use, capacity)]
        entitled = below or waiting
        chosen = self._overdue(entitled, now_ns) or self._fairest(entitled)
        return self._requests[chosen]

    def _overdue(self, names: list[str], now_ns: int) -> str:
        """The oldest request of these classes if it waited too long, else nothing."""
        firsts = [self._arrivals[name].first() for name in names]
        (arrival_ns, _), oldest = min(first for first in firsts if first)
        return oldest if now_ns - arrival_ns > self._max_wait_ns else ""

    def _fairest(self, names: list[str]) -> str:
        tops = [self._priorities[name].first() for name in names]
        (priority,), _ = min(top for top in tops if top)
        least: tuple[Served, str] | None = None
        for name in names:
            if (name, priority) in self._lanes:
                served = self._least_served(self._lanes[name, priority], priority)
                least = min(least, (served, name)) if least else (served, name)
        assert least
        (_, tenant), name = least
        first = self._lanes[name, priority].requests[tenant].first()
        assert first
        return first[1]

    def _least_served(self, lane: Lane, priority: int) -> Served:
        """Counters only grow, so a lane learns of a charge when the tenant comes to its top."""
        while True:
            first = lane.tenants.first()
            assert first
            key, tenant = first
            served = (self._counters.of(tenant, priority), tenant)
            if key == served:
                return served
            lane.tenants.put(tenant, served)

    def _waits(self, tenant: str, priority: int) -> bool:
        """Whether the tenant has a request at this priority in any class."""
        return any(tenant in lane.requests for lane in self._at(priority))

    def _at(self, priority: int) -> list[Lane]:
        """The lanes of all classes at this priority in which somebody waits."""
        found = (self._lanes.get((name, priority)) for name in self._arrivals)
        return [lane for lane in found if lane and len(lane.tenants)]
