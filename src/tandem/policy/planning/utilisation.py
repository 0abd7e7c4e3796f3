"""Scaling by a utilisation threshold, the rule of general autoscalers (HPA, KPA)."""

from dataclasses import dataclass

from tandem.facts.fleet import Role
from tandem.policy.planning.contract import FleetView, Plan
from tandem.policy.planning.demand import sampled
from tandem.policy.planning.pools import (
    Sizes,
    in_change,
    last_seconds,
    lengths_of,
    mean,
    pool,
    present,
    within_bounds,
)

# How far back requests tell how long prompts are.
LENGTHS_FROM_S = 300.0


@dataclass(frozen=True, slots=True)
class UtilisationThreshold:
    """One more worker when a pool's mean utilisation is above `threshold`, one fewer when the rest
    would stay below it. It waits until the last change is done.

    Prefill: the share of the last window that its prompts keep the pool busy. Decode: the fuller of
    KV memory and sequence slots, now.
    """

    threshold: float = 0.7
    interval_s: float = 15.0

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:  # noqa: ARG002
        sizes = present(fleet)
        if in_change(fleet):
            return Plan(reason="a change is still under way")
        used = (prefill_utilisation(fleet), decode_utilisation(fleet))
        wanted = within_bounds(
            Sizes(self._count(sizes.prefill, used[0]), self._count(sizes.decode, used[1])), fleet
        )
        reason = f"utilisation {used[0]:.0%} prefill, {used[1]:.0%} decode"
        return Plan(wanted.prefill, wanted.decode, reason=reason)

    def _count(self, workers: int, utilisation: float) -> int:
        if utilisation > self.threshold:
            return workers + 1
        if workers > 1 and utilisation * workers / (workers - 1) < self.threshold:
            return workers - 1
        return workers


def prefill_utilisation(fleet: FleetView) -> float:
    """Seconds of prefill that arrived in the last window for each second the pool had. Lengths are
    those of requests that ended lately: what just arrived has none yet."""
    if not fleet.windows:
        return 0.0
    window = fleet.windows[-1]
    lengths = sampled(lengths_of(last_seconds(fleet.windows, LENGTHS_FROM_S)))
    busy_s = window.requests * mean([fleet.cost.prefill_seconds(prompt) for prompt, _ in lengths])
    return busy_s / (window.seconds * max(1, len(pool(fleet, Role.PREFILL))))


def decode_utilisation(fleet: FleetView) -> float:
    return mean(
        [
            max(view.kv_used, view.running_sequences / view.max_sequences)
            for view in pool(fleet, Role.DECODE)
        ]
    )
