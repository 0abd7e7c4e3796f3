"""The gateways that a worker or pool process serves: the state of each connection, the leases on
their requests, and the worker's role state."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tandem.facts.adapter import AdapterFigures
from tandem.facts.fleet import Role
from tandem.facts.step_totals import DraftTotals, StepTotals
from tandem.messages.cluster import Drain, Registered, TiersReported


class RoleState:
    """`drain` is what the worker is to do once nothing is left; None while it takes requests."""

    def __init__(self, role: Role, accepting: bool) -> None:
        self.role = role
        self.drain: Drain | None = None if accepting else Drain()
        self._must_leave = False

    @property
    def accepting(self) -> bool:
        return self.drain is None

    @property
    def leaving(self) -> bool:
        return self.drain is not None and self.drain.leave

    @property
    def spare(self) -> bool:
        """Whether it takes no requests because a planner has it stand by."""
        return self.drain is not None and self.drain.spare and self.drain.then_role is None

    @property
    def reported(self) -> tuple[Role, bool, bool]:
        """What gateways are told: the role, whether it takes requests, whether it is a spare."""
        return self.role, self.accepting, self.spare

    @property
    def again(self) -> bool:
        """Whether it leaves only to be started anew."""
        return self.drain is not None and self.drain.again

    def leave(self) -> None:
        """The supervisor wants the process to end: no gateway can call that off."""
        self._must_leave = True
        self.drain = Drain(leave=True)

    def drain_for(self, order: Drain) -> None:
        """The last order counts, but for leaving."""
        self.drain = Drain(leave=True) if self._must_leave else order

    def undrain(self) -> None:
        if not self._must_leave:
            self.drain = None

    def take_role(self) -> bool:
        """The worker is empty: take the role that waits for that. Whether there is one."""
        if self.drain is None or self.drain.leave or self.drain.then_role is None:
            return False
        self.role, self.drain = self.drain.then_role, None
        return True


# Registration is repeated while the gateway does not answer: it may have come too early.
REGISTER_AGAIN_NS = 5_000_000_000
# At most so many reports are sent within a report interval while requests end.
REPORTS_AN_INTERVAL = 20
# What steps took is reported so often at most.
TOTALS_REPORT_NS = 1_000_000_000
# Of steps, and of drafts and adapters where there are any.
Totals = tuple[tuple[StepTotals, ...], DraftTotals | None, AdapterFigures | None]
NO_TOTALS: Totals = ((), None, None)


@dataclass(slots=True)
class GatewayConnection:
    """The connection to one gateway. `terms` is None until the gateway has registered the worker,
    which sent `Register` last at `registered_ns`; `reported_state` is the (role, accepting, spare)
    last reported to the gateway, `reported_tiers` the figures of slower tiers, `reported_totals`
    what its steps took, what came of its drafts and its adapters, at `totals_reported_ns`.
    `received_events` of its router have come since it was registered. `not_needed`: the gateway has
    let the draining worker go."""

    terms: Registered | None = None
    registered_ns: int | None = None
    reported_state: tuple[Role, bool, bool] | None = None
    reported_tiers: TiersReported | None = None
    reported_totals: Totals = NO_TOTALS
    totals_reported_ns: int | None = None
    last_message_ns: int = 0
    reported_ns: int = 0
    received_events: int = 0
    not_needed: bool = False
    # The next report is awaited: it is sent even where reports are sent when asked for.
    report_wanted: bool = False

    def report_due_ns(self) -> int | None:
        return None if self.terms is None else self.reported_ns + self.terms.report_interval_ns

    def report_is_due(self, now_ns: int) -> bool:
        due_ns = self.report_due_ns()
        return due_ns is not None and due_ns <= now_ns

    def report_at(self, instant_ns: int) -> None:
        """The next report is due then at the latest."""
        if self.terms is not None:
            due_since_ns = instant_ns - self.terms.report_interval_ns
            self.reported_ns = min(self.reported_ns, due_since_ns)
            self.report_wanted = True

    def report_soon(self, now_ns: int) -> None:
        """The worker has room that it had not: a gateway that took it for full would refuse."""
        if self.terms is not None and not self.report_wanted:
            spacing_ns = self.terms.report_interval_ns // REPORTS_AN_INTERVAL
            self.report_at(max(now_ns, self.reported_ns + spacing_ns))

    def forget(self) -> None:
        """The gateway does not have the worker (any more)."""
        self.terms = self.registered_ns = self.reported_state = None
        self.reported_totals, self.totals_reported_ns = NO_TOTALS, None

    def totals_due(self, totals: Totals, now_ns: int) -> Totals:
        """What the report of this instant says of steps, drafts and adapters: nothing where that is
        known, or was said a moment ago."""
        last_ns, known = self.totals_reported_ns, self.reported_totals
        same = totals[0] is known[0] and totals[1] is known[1] and totals[2] == known[2]
        if same or (last_ns is not None and now_ns - last_ns < TOTALS_REPORT_NS):
            return NO_TOTALS
        self.reported_totals, self.totals_reported_ns = totals, now_ns
        return totals

    def reported(self, now_ns: int) -> None:
        """A report goes out."""
        self.reported_ns, self.report_wanted = now_ns, False

    def due_ns(self, *, reports: bool = True) -> int | None:
        """When a report or a timeout is due here if nothing comes; `reports` count only if they are
        sent by time."""
        if self.terms is not None:
            silent_ns = self.last_message_ns + self.terms.silence_ns
            if not reports and not self.report_wanted:
                return silent_ns
            return min(self.reported_ns + self.terms.report_interval_ns, silent_ns)
        return None if self.registered_ns is None else self.registered_ns + REGISTER_AGAIN_NS


class GatewayConnections:
    """The gateways whose channel works, by name."""

    def __init__(self) -> None:
        self._connections: dict[str, GatewayConnection] = {}

    def connect(self, gateway: str) -> None:
        self._connections[gateway] = GatewayConnection()

    def disconnect(self, gateway: str) -> None:
        self._connections.pop(gateway, None)

    def of(self, gateway: str) -> GatewayConnection | None:
        return self._connections.get(gateway)

    def serving(self) -> Iterator[tuple[str, GatewayConnection]]:
        """The gateways that know the worker."""
        return (
            (name, connection)
            for name, connection in self._connections.items()
            if connection.terms is not None
        )

    def slept(self, asleep_ns: int) -> None:
        """The worker itself has slept through so much time, which is no gateway's silence."""
        for _, connection in self.serving():
            if connection.terms is not None and asleep_ns > connection.terms.silence_ns // 4:
                connection.last_message_ns += asleep_ns

    def silent(self, now_ns: int) -> list[str]:
        """The gateways to be taken for dead."""
        return [
            name
            for name, connection in self.serving()
            if connection.terms is not None
            and now_ns - connection.last_message_ns >= connection.terms.silence_ns
        ]

    def unanswered(self, now_ns: int) -> list[str]:
        """The gateways that have not answered a registration in time."""
        return [
            name
            for name, connection in self._connections.items()
            if connection.terms is None
            and connection.registered_ns is not None
            and now_ns - connection.registered_ns >= REGISTER_AGAIN_NS
        ]

    def reports_due(self, now_ns: int, *, asked: bool) -> list[tuple[str, GatewayConnection]]:
        """The gateways that are to get a report now. Where reports are sent only when `asked` for,
        those that wait for one."""
        return [
            (name, connection)
            for name, connection in self.serving()
            if connection.report_is_due(now_ns) and (connection.report_wanted or not asked)
        ]

    def report_due_ns(self) -> int | None:
        """When the next report is due."""
        due_ns = (connection.report_due_ns() for connection in self._connections.values())
        return min((due for due in due_ns if due is not None), default=None)

    def due_ns(self, *, reports: bool = True) -> int | None:
        """When the first report or timeout is due; `reports` count only if they are sent by
        time."""
        earliest_ns: int | None = None
        for connection in self._connections.values():
            due_ns = connection.due_ns(reports=reports)
            if due_ns is not None and (earliest_ns is None or due_ns < earliest_ns):
                earliest_ns = due_ns
        return earliest_ns


class Leases:
    """One lease a request, whatever its stage. Those of one gateway end in the order in which they
    were last renewed."""

    def __init__(self) -> None:
        self._gateway_of: dict[str, str] = {}
        self._ends_ns: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._gateway_of)

    @property
    def request_ids(self) -> set[str]:
        return set(self._gateway_of)

    @property
    def sole_owner(self) -> str | None:
        """The gateway that all requests belong to, if it is one."""
        return next(iter(self._ends_ns)) if len(self._ends_ns) == 1 else None

    def owner(self, request_id: str) -> str | None:
        """The gateway that a request belongs to; None when nobody's."""
        return self._gateway_of.get(request_id)

    def grant(self, request_id: str, gateway: str, end_ns: int) -> None:
        """A request has come. An id that is taken keeps its owner and its end."""
        if request_id not in self._gateway_of:
            self._gateway_of[request_id] = gateway
            self._ends_ns.setdefault(gateway, {})[request_id] = end_ns

    def renew(self, gateway: str, request_ids: Iterable[str], end_ns: int) -> None:
        """The gateway still wants these; those that are not its own, or gone, are left out."""
        ends_ns = self._ends_ns.get(gateway, {})
        for request_id in request_ids:
            if ends_ns.pop(request_id, None) is not None:
                ends_ns[request_id] = end_ns

    def end(self, request_id: str) -> None:
        """The request holds nothing any more. Unknown ids are ignored."""
        gateway = self._gateway_of.pop(request_id, None)
        if gateway is not None:
            ends_ns = self._ends_ns[gateway]
            del ends_ns[request_id]
            if not ends_ns:
                del self._ends_ns[gateway]

    def of(self, gateway: str) -> tuple[str, ...]:
        """All requests of a gateway."""
        return tuple(self._ends_ns.get(gateway, ()))

    def expired(self, now_ns: int) -> dict[str, tuple[str, ...]]:
        """The requests that nobody has renewed in time, by gateway; they are not ended yet."""
        found = {}
        for gateway, ends_ns in self._ends_ns.items():
            late: list[str] = []
            for request_id, end_ns in ends_ns.items():
                if end_ns > now_ns:
                    break
                late.append(request_id)
            if late:
                found[gateway] = tuple(late)
        return found

    def next_wakeup(self) -> int | None:
        """When the next one ends if it is not renewed."""
        earliest_ns: int | None = None
        for ends_ns in self._ends_ns.values():
            for end_ns in ends_ns.values():
                if earliest_ns is None or end_ns < earliest_ns:
                    earliest_ns = end_ns
                break
        return earliest_ns
