"""Routing policies by name."""

from collections.abc import Callable

from tandem.policy.routing.contract import Routing
from tandem.policy.routing.cost_seconds import CostSeconds
from tandem.policy.routing.load import LeastLoad, PowerOfTwo, Random, RoundRobin
from tandem.policy.routing.pairing import ScoredRouting
from tandem.policy.routing.published import BlockCost, PrefixFirst, WeightedScore

ROUTINGS: dict[str, Callable[[int], Routing]] = {
    "random": lambda seed: ScoredRouting(Random(seed)),
    "round-robin": lambda _: ScoredRouting(RoundRobin()),
    "least-load": lambda _: ScoredRouting(LeastLoad()),
    "power-of-two": lambda seed: ScoredRouting(PowerOfTwo(seed)),
    "prefix-first": lambda _: ScoredRouting(PrefixFirst()),
    "block-cost": lambda _: ScoredRouting(BlockCost()),
    "weighted-score": lambda _: ScoredRouting(WeightedScore()),
    "cost": lambda _: CostSeconds(),
}
"""A policy is made from a seed; those that draw no chance ignore it."""
