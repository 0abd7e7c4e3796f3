"""What a gateway promises its clients, and how long it keeps what they leave."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.facts.serving import Caller
from tandem.facts.slo import Slo
from tandem.live.clock import NS_PER_S
from tandem.messages.router import FollowedPause


@dataclass(frozen=True, slots=True)
class GatewayTerms:
    """`incarnation` differs for each start of the process: with the gateway's name it makes request
    ids unique among all gateways. `max_waiting` requests may wait for their first token; `slo` is
    what every request gets promised. What a session's request leaves in slower tiers is kept for
    `pin_sessions_s`, and what a client asks to be kept for up to `longest_pin_s`, unless its tenant
    (`longest_pins_s`) or its class has a bound of its own, which holds for its sessions as well.
    Pauses of sessions are followed up to `longest_pause_s` (0: not at all), within those bounds.
    Metrics tell these `tenants` apart. Histories of requests may take `explain_bytes`. What was
    sent may take `linger_s` to leave."""

    incarnation: str
    max_waiting: int = 4096
    slo: Slo = field(default_factory=Slo)
    pin_sessions_s: float = 0.0
    longest_pin_s: float = 0.0
    longest_pins_s: Mapping[str, float] = field(default_factory=dict)
    tenants: tuple[str, ...] = ()
    longest_pause_s: float = 0.0
    explain_bytes: int = 0
    linger_s: float = 1.0
    comeback_s: float = 15.0

    def pin_s(self, caller: Caller, of_class_s: float | None = None) -> float:
        """How long to keep what a request of this caller leaves, where its class may ask for up to
        `of_class_s` (None: the class has no bound)."""
        session_s = self.pin_sessions_s if caller.session else 0.0
        bound_s = self.longest_pins_s.get(caller.tenant, of_class_s)
        if bound_s is None:
            return max(session_s, min(caller.pin_s, self.longest_pin_s))
        # Whoever names a session asks for something too.
        return min(max(session_s, caller.pin_s), bound_s)

    def pause(self, caller: Caller, of_class_s: float | None = None) -> FollowedPause | None:
        """Which pause after the answer to this caller is followed, where its class may ask for up
        to `of_class_s`."""
        bound_s = self.longest_pins_s.get(caller.tenant, of_class_s)
        longest_s = self.longest_pause_s if bound_s is None else min(self.longest_pause_s, bound_s)
        if not caller.session or longest_s <= 0:
            return None
        announced_ns = None if caller.pause_s is None else round(caller.pause_s * NS_PER_S)
        return FollowedPause(round(longest_s * NS_PER_S), announced_ns)
