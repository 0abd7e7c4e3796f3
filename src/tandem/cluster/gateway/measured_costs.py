"""What work costs on each worker: its cost model with the tiers replaced by measured bandwidths.

A tier must earn its place: one that a worker does not have, or has switched off, is not counted on.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import floor, log2

from tandem.cluster.router.fleet import Capacity
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.fleet import Tier
from tandem.facts.kv import TierFigures
from tandem.messages.cluster import Register

# Measured bandwidths are rounded to steps of a quarter of a doubling, so that noise makes no new
# prices.
STEPS_A_DOUBLING = 4
KEPT_PRICES = 1000
# Nobody fetches or computes a token in less, or is believed to take more.
SHORTEST_S, LONGEST_S = 1e-12, 1e6

Links = tuple[tuple[Tier, LinkCost], ...]


class MeasuredCosts:
    """`capacities` are those of all workers that ever joined, as they are priced now."""

    def __init__(self, capacity_of: Callable[[Register], Capacity]) -> None:
        self.capacities: dict[str, Capacity] = {}
        self._capacity_of = capacity_of
        self._listed: dict[str, WorkerCost] = {}
        # Equal prices are one object, by which others keep what follows from them.
        self._made: dict[tuple[int, Links], tuple[WorkerCost, WorkerCost]] = {}

    def reconfigure(self, capacity_of: Callable[[Register], Capacity]) -> None:
        """Other prices for whoever joins from now on; those who are there keep theirs."""
        self._capacity_of = capacity_of

    def joined(self, register: Register) -> None:
        """The worker has no tier until it reports its tiers."""
        capacity = self._capacity_of(register)
        self._listed[register.worker] = capacity.cost
        self.capacities[register.worker] = replace(capacity, cost=self._priced(capacity.cost, ()))

    def reported(self, worker: str, tiers: Iterable[TierFigures]) -> Capacity | None:
        """How the tiers of a worker that has joined fare now; None when no price changes."""
        listed, capacity = self._listed[worker], self.capacities[worker]
        links = tuple((each.tier, link_of(listed, each)) for each in tiers if each.on)
        cost = self._priced(listed, links)
        if cost.tiers == capacity.cost.tiers:
            return None
        self.capacities[worker] = replace(capacity, cost=cost)
        return self.capacities[worker]

    def _priced(self, listed: WorkerCost, links: Links) -> WorkerCost:
        key = (id(listed), links)
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= KEPT_PRICES:
                self._made.clear()
            # What is kept beside it keeps the id from passing to another list.
            made = self._made[key] = listed, replace(listed, tiers=dict(links))
        return made[1]


def link_of(listed: WorkerCost, figures: TierFigures) -> LinkCost:
    """The way to a tier: as measured, once it is, else as the price list has it.

    Costs of computing are estimates, and seconds of fetching are compared with them. So what counts
    is how the worker's fetching compares with its own computing, where it has measured both.
    """
    link = listed.tiers.get(figures.tier, LinkCost())
    if figures.fetch_s_per_token <= 0:
        return link
    fetch_s = figures.fetch_s_per_token
    if figures.compute_s_per_token > 0:
        tokens = listed.chunk_tokens
        compute_s = max(figures.compute_s_per_token, SHORTEST_S)
        fetch_s *= listed.prefill_seconds(tokens) / tokens / compute_s
    fetch_s = min(max(fetch_s, SHORTEST_S), LONGEST_S)
    steps = floor(log2(listed.kv_bytes_per_token / fetch_s) * STEPS_A_DOUBLING)
    return LinkCost(2.0 ** (steps / STEPS_A_DOUBLING), link.latency_s)
