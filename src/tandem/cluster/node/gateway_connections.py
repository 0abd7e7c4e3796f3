"""The gateways that a worker serves, and the state of each connection: registering, registered,
silent."""

from collections.abc import Iterator
from dataclasses import dataclass

from tandem.facts.fleet import Role
from tandem.messages.cluster import Registered, TiersReported

# A Register is repeated while the gateway says nothing: it may have come too early to be heard.
REGISTER_AGAIN_NS = 5_000_000_000


@dataclass(slots=True)
class GatewayConnection:
    """The channel to one gateway. `terms` is None until the gateway knows the worker, which said
    Register last at `registered_ns`; `told` is the (role, accepting) that the gateway was told,
    `told_tiers` what it was told of the slower tiers.
    `heard_events`: how many of its router's events have come since the terms. `not_needed`: the
    gateway has let the draining worker go."""

    terms: Registered | None = None
    registered_ns: int | None = None
    told: tuple[Role, bool] | None = None
    told_tiers: TiersReported | None = None
    heard_ns: int = 0
    reported_ns: int = 0
    heard_events: int = 0
    not_needed: bool = False

    def report_due_ns(self) -> int | None:
        return None if self.terms is None else self.reported_ns + self.terms.report_interval_ns

    def report_at(self, instant_ns: int) -> None:
        """The next report is due then at the latest."""
        if self.terms is not None:
            due_since_ns = instant_ns - self.terms.report_interval_ns
            self.reported_ns = min(self.reported_ns, due_since_ns)

    def due_ns(self) -> int | None:
        """When something is to be said or concluded here if nothing comes."""
        if self.terms is not None:
            report_ns = self.reported_ns + self.terms.report_interval_ns
            return min(report_ns, self.heard_ns + self.terms.silence_ns)
        return None if self.registered_ns is None else self.registered_ns + REGISTER_AGAIN_NS


class GatewayConnections:
    """The gateways whose channel works, by name."""

    def __init__(self) -> None:
        self._links: dict[str, GatewayConnection] = {}

    def connect(self, gateway: str) -> None:
        self._links[gateway] = GatewayConnection()

    def disconnect(self, gateway: str) -> None:
        self._links.pop(gateway, None)

    def of(self, gateway: str) -> GatewayConnection | None:
        return self._links.get(gateway)

    def serving(self) -> Iterator[tuple[str, GatewayConnection]]:
        """The gateways that know the worker."""
        return (
            (name, connection)
            for name, connection in self._links.items()
            if connection.terms is not None
        )

    def excuse(self, asleep_ns: int) -> None:
        """The worker itself has slept through so much time, which is no gateway's silence."""
        for _, connection in self.serving():
            if connection.terms is not None and asleep_ns > connection.terms.silence_ns // 4:
                connection.heard_ns += asleep_ns

    def silent(self, now_ns: int) -> list[str]:
        """The gateways to be taken for dead."""
        return [
            name
            for name, connection in self.serving()
            if connection.terms is not None
            and now_ns - connection.heard_ns >= connection.terms.silence_ns
        ]

    def unanswered(self, now_ns: int) -> list[str]:
        """The gateways that have not answered a Register in time."""
        return [
            name
            for name, connection in self._links.items()
            if connection.terms is None
            and connection.registered_ns is not None
            and now_ns - connection.registered_ns >= REGISTER_AGAIN_NS
        ]

    def due_ns(self) -> list[int]:
        """When something is to be said or concluded, gateway by gateway."""
        return [
            due for connection in self._links.values() if (due := connection.due_ns()) is not None
        ]
