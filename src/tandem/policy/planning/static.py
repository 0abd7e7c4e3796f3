"""The planner that never plans: fixed numbers, as most deployments have today."""

from dataclasses import dataclass

from tandem.policy.planning.contract import FleetView, Plan
from tandem.policy.planning.pools import Sizes, within_bounds


@dataclass(frozen=True, slots=True)
class Static:
    """Keeps `prefill` and `decode` workers; where they are None, whatever there is."""

    prefill: int | None = None
    decode: int | None = None
    interval_s: float = 60.0

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:  # noqa: ARG002
        if self.prefill is None or self.decode is None:
            return Plan(self.prefill, self.decode, reason="fixed")
        sizes = within_bounds(Sizes(self.prefill, self.decode), fleet)
        return Plan(sizes.prefill, sizes.decode, reason=f"fixed: {sizes}")
