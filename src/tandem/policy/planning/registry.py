"""Planning policies by name, and the static one: fixed numbers of workers, as most deployments
have."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.planning.contract import FleetView, Plan, Planning
from tandem.policy.planning.dynamo import Dynamo, DynamoLoad, DynamoThroughput
from tandem.policy.planning.pools import Sizes, within_bounds
from tandem.policy.planning.role_flips import Arrow, TetriInfer
from tandem.policy.planning.tandem import Tandem
from tandem.policy.planning.utilisation import UtilisationThreshold


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


def planning(name: str, **options: Any) -> Planning:
    """A new policy of that name with its options. Raises `InvalidConfiguration` for an unknown
    name or option."""
    if name not in PLANNINGS:
        raise InvalidConfiguration(f"planning is {name!r}; choose one of {', '.join(PLANNINGS)}")
    try:
        return PLANNINGS[name](**options)
    except TypeError as error:
        raise InvalidConfiguration(f"planning {name!r}: {error}; correct its options") from error
