"""What work costs on each worker: its cost model, corrected by what was measured of the worker,
with the tiers replaced by measured bandwidths.

A tier must earn its place: one that a worker does not have, or has switched off, is not counted on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import floor, log2

from tandem.cluster.gateway.learning import LearnedCorrection
from tandem.cluster.router.fleet import Capacity
from tandem.cost.correction import corrected
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.correction import UNCORRECTED, Correction
from tandem.facts.fleet import Tier
from tandem.facts.kv import MoveReport, TierFigures
from tandem.facts.step_totals import StepTotals
from tandem.messages.cluster import Register
from tandem.policy.learning import Learning

# Measured bandwidths are rounded to steps of a quarter of a doubling, so that noise makes no new
# prices.
STEPS_A_DOUBLING = 4
KEPT_PRICES = 1000
# Nobody fetches or computes a token in less, or is believed to take more.
SHORTEST_S, LONGEST_S = 1e-12, 1e6

Links = tuple[tuple[Tier, LinkCost], ...]


@dataclass(slots=True)
class Prices:
    """Of one start (`incarnation`) of a worker: what is listed, what its tiers reported, and what
    was learnt (None: costs are as listed)."""

    incarnation: str
    listed: WorkerCost
    learned: LearnedCorrection | None
    tiers: tuple[TierFigures, ...] = ()

    @property
    def correction(self) -> Correction:
        return UNCORRECTED if self.learned is None else self.learned.correction


class MeasuredCosts:
    """`capacities` are those of all workers that ever joined, as they are priced now. A method that
    changes a price gives the new capacity, else None. Without `learning` only tiers are
    measured."""

    def __init__(
        self, capacity_of: Callable[[Register], Capacity], learning: Learning | None
    ) -> None:
        self.capacities: dict[str, Capacity] = {}
        self._capacity_of = capacity_of
        self._learning = learning
        self._prices: dict[str, Prices] = {}
        # Equal prices are one object, by which others keep what follows from them.
        self._made: dict[tuple[int, Links, Correction], tuple[WorkerCost, WorkerCost]] = {}

    def reconfigure(
        self, capacity_of: Callable[[Register], Capacity], learning: Learning | None
    ) -> dict[str, Capacity]:
        """Other prices for whoever joins from now on; those who are there keep theirs, and begin to
        learn anew where that is done otherwise than before. Gives the prices that change."""
        self._capacity_of = capacity_of
        if learning == self._learning:
            return {}
        self._learning = learning
        changed = {}
        for name, prices in self._prices.items():
            prices.learned = None
            if learning is not None:
                prices.learned = LearnedCorrection(learning, prices.listed)
            cost = self._priced(prices)
            if cost is not self.capacities[name].cost:
                changed[name] = replace(self.capacities[name], cost=cost)
        self.capacities.update(changed)
        return changed

    def joined(self, register: Register) -> None:
        """The worker has no tier until it reports its tiers. What was learnt of the same process
        holds, also where it has registered again."""
        capacity = self._capacity_of(register)
        listed, known = capacity.cost, self._prices.get(register.worker)
        learned = None
        if known is not None and known.incarnation == register.incarnation:
            learned = known.learned
        elif self._learning is not None:
            learned = LearnedCorrection(self._learning, listed)
        prices = self._prices[register.worker] = Prices(register.incarnation, listed, learned)
        self.capacities[register.worker] = replace(capacity, cost=self._priced(prices))

    def left(self, worker: str) -> None:
        """A worker is gone: others transfer nothing to or from it any more."""
        for prices in self._prices.values():
            if prices.learned is not None:
                prices.learned.forget_peer(worker)

    def correction(self, worker: str) -> Correction:
        """How far a worker that has joined is from its listed costs."""
        return self._prices[worker].correction

    def reported(self, worker: str, tiers: Iterable[TierFigures]) -> Capacity | None:
        """How the tiers of a worker that has joined fare now."""
        prices, before = self._prices[worker], self.capacities[worker]
        prices.tiers = tuple(tiers)
        cost = self._priced(prices)
        if cost.tiers == before.cost.tiers:
            return None
        self.capacities[worker] = replace(before, cost=cost)
        return self.capacities[worker]

    def steps_reported(
        self, worker: str, totals: Iterable[StepTotals], now_ns: int
    ) -> Capacity | None:
        """What the steps of a worker that has joined took so far."""
        learned = self._prices[worker].learned
        if learned is None:
            return None
        learned.steps_reported(totals, now_ns)
        return self._revised(worker)

    def transfer_measured(
        self, source: str, target: str, report: MoveReport, transfers: float, now_ns: int
    ) -> dict[str, Capacity]:
        """KV moved between two workers, while so many `transfers` shared their links. Gives the
        prices that change."""
        ends = [name for name in (source, target) if name in self._prices]
        if self._learning is None or not report.arrived or report.seconds <= 0 or len(ends) < 2:
            return {}
        listed_s = max(
            self._prices[name].listed.network.seconds(report.moved_bytes) for name in ends
        )
        if listed_s <= 0:
            return {}
        most = log2(report.seconds / listed_s)
        changed = {}
        for name, peer in zip(ends, reversed(ends), strict=True):
            learned = self._prices[name].learned
            if learned is not None:
                learned.transfer_measured(peer, most - log2(transfers), most, now_ns)
                if capacity := self._revised(name):
                    changed[name] = capacity
        return changed

    def first_token_late(self, worker: str, late_s: float, now_ns: int) -> Capacity | None:
        """A first token of a worker came so many seconds later than its steps explain."""
        prices = self._prices.get(worker)
        if prices is None or prices.learned is None:
            return None
        prices.learned.first_token_late(late_s, now_ns)
        return self._revised(worker)

    def fade(self, workers: Iterable[str], now_ns: int) -> dict[str, Capacity]:
        """What is not measured any more of these goes back to the list. Gives the prices that
        change."""
        changed = {}
        for worker in workers:
            learned = self._prices[worker].learned
            if learned is not None:
                learned.fade(now_ns)
                if capacity := self._revised(worker):
                    changed[worker] = capacity
        return changed

    def _revised(self, worker: str) -> Capacity | None:
        prices = self._prices[worker]
        if prices.learned is None or not prices.learned.revise():
            return None
        self.capacities[worker] = replace(self.capacities[worker], cost=self._priced(prices))
        return self.capacities[worker]

    def _priced(self, prices: Prices) -> WorkerCost:
        correction = prices.correction
        # Seconds of fetching are compared with those of computing, as they are corrected.
        cost = corrected(prices.listed, correction)
        links = tuple((each.tier, link_of(cost, each)) for each in prices.tiers if each.on)
        key = (id(prices.listed), links, correction)
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= KEPT_PRICES:
                self._made.clear()
            # What is kept beside it keeps the id from passing to another list.
            made = self._made[key] = prices.listed, replace(cost, tiers=dict(links))
        return made[1]


def link_of(cost: WorkerCost, figures: TierFigures) -> LinkCost:
    """The way to a tier: as measured, once it is, else as `cost` lists it.

    Costs of computing are estimates, and seconds of fetching are compared with them. So what counts
    is how the worker's fetching compares with its own computing, where it has measured both.
    """
    link = cost.tiers.get(figures.tier, LinkCost())
    if figures.fetch_s_per_token <= 0:
        return link
    fetch_s = figures.fetch_s_per_token
    if figures.compute_s_per_token > 0:
        tokens = cost.chunk_tokens
        compute_s = max(figures.compute_s_per_token, SHORTEST_S)
        fetch_s *= cost.prefill_seconds(tokens) / tokens / compute_s
    fetch_s = min(max(fetch_s, SHORTEST_S), LONGEST_S)
    steps = floor(log2(cost.kv_bytes_per_token / fetch_s) * STEPS_A_DOUBLING)
    return LinkCost(2.0 ** (steps / STEPS_A_DOUBLING), link.latency_s)
