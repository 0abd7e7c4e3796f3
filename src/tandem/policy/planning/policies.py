"""Planning policies by name, and the plain ones: fixed numbers of workers, as most deployments
have, and a threshold of utilisation, the rule of general autoscalers (HPA, KPA)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.policy.planning.contract import FleetView, Plan, Planning
from tandem.policy.planning.demand import sampled
from tandem.policy.planning.dynamo import Dynamo, DynamoLoad, DynamoThroughput
from tandem.policy.planning.pools import (
    Sizes,
    bounded_plan,
    decode_load,
    in_change,
    last_seconds,
    lengths_of,
    mean,
    pool,
    present,
    within_bounds,
)
from tandem.policy.planning.role_flips import Arrow, TetriInfer
from tandem.policy.planning.tandem import Tandem


@dataclass(frozen=True, slots=True)
class Static:
    """Keeps `prefill` and `decode` workers; where they are None, whatever there is."""

    prefill: int | None = None
    decode: int | None = None
    interval_s: float = 60.0

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        if self.prefill is None or self.decode is None:
            return Plan(self.prefill, self.decode, reason="fixed")
        sizes = within_bounds(Sizes(self.prefill, self.decode), fleet)
        return Plan(sizes.prefill, sizes.decode, reason=f"fixed: {sizes}")


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

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        sizes = present(fleet)
        if in_change(fleet):
            return Plan(reason="a change is still under way")
        used = (prefill_utilisation(fleet), decode_utilisation(fleet))
        wanted = Sizes(self._count(sizes.prefill, used[0]), self._count(sizes.decode, used[1]))
        reason = f"utilisation {used[0]:.0%} prefill, {used[1]:.0%} decode"
        return bounded_plan(wanted, fleet, reason)

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
    return mean([decode_load(view) for view in pool(fleet, Role.DECODE)])


PLANNINGS: dict[str, Callable[..., Planning]] = {
    "static": Static,
    "utilisation": UtilisationThreshold,
    "tetri": TetriInfer,
    "arrow": Arrow,
    "dynamo": Dynamo,
    "dynamo_throughput": DynamoThroughput,
    "dynamo_load": DynamoLoad,
    "tandem": Tandem,
}


def remembered_s(planning: Planning) -> float:
    """How long a gateway is to remember what clients asked for: for policies that ask a
    simulator."""
    return planning.remembers_s if isinstance(planning, Tandem) else 0.0


def planning(name: str, **options: Any) -> Planning:
    """A new policy of that name with its options. Raises `InvalidConfiguration` for an unknown
    name or option."""
    if name not in PLANNINGS:
        raise InvalidConfiguration(f"planning is {name!r}; choose one of {', '.join(PLANNINGS)}")
    try:
        return PLANNINGS[name](**options)
    except TypeError as error:
        raise InvalidConfiguration(f"planning {name!r}: {error}; correct its options") from error
