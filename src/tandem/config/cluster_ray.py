"""How a cluster file asks for machines of a Ray cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from tandem.config.cluster_build import Known
from tandem.config.cluster_tree import RefusedAt

LAUNCHERS = ("local", "ray")
PLACEMENTS = ("spread", "pack", "strict_spread")

Launcher = Annotated[str, Known("launcher", LAUNCHERS)]
Placement = Annotated[str, Known("placement", PLACEMENTS)]
# Names as in Ray's own options; every other name is a resource that somebody gave to machines.
RAY_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}


@dataclass(frozen=True, slots=True)
class RayConfig:
    """The Ray cluster, to which this machine belongs, at `address` (host:port; auto: found by Ray),
    how processes are put on its machines, and how long they may wait for a place there."""

    address: str = "auto"
    placement: Placement = "spread"
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if "://" in self.address:
            raise RefusedAt(
                "address",
                f"ray.address {self.address}: gateways run on this machine, which must belong to "
                "the Ray cluster; write auto, or the host:port of its head",
            )


def bundle(resources: Mapping[str, float]) -> dict[str, float]:
    """As Ray calls them; what is 0 is left out."""
    return {RAY_NAMES.get(name, name): amount for name, amount in resources.items() if amount}
