"""Routing policies by name: by load, by cached prefixes (formulas of other projects), and by
predicted seconds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import NewType

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.policy.chance import draw
from tandem.policy.routing.contract import Route, Routing
from tandem.policy.routing.pairing import (
    ScoredRouting,
    Scoring,
    candidates,
    pair,
    quotes_by_link,
    sides_for,
    smallest,
)
from tandem.policy.routing.prediction import Predictor
from tandem.policy.views import RequestView, WorkerView

# The cluster's: no parameter of a policy's own.
Seed = NewType("Seed", int)
NO_SEED = Seed(0)


@dataclass(frozen=True, slots=True)
class Random:
    """Each worker with the same chance, drawn anew for each phase."""

    seed: Seed = NO_SEED

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        drawn = int(draw(self.seed, "random", request.serial, phase) * len(views))
        return _turns(drawn, len(views))


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """One after the other, in order of their ids."""

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        return _turns(request.serial, len(views))


@dataclass(frozen=True, slots=True)
class LeastLoad:
    """The fewest requests: running, waiting and on their way. Unit: requests."""

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        return [float(view.requests) for view in views]


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """The less loaded of two drawn at random (Mitzenmacher, "The Power of Two Choices in
    Randomized Load Balancing", 2001). Unit: requests; infinite for those not drawn."""

    seed: Seed = NO_SEED

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        count = len(views)
        first = int(draw(self.seed, "first", request.serial, phase) * count)
        scores = [inf] * count
        scores[first] = float(views[first].requests)
        if count > 1:
            # One of the others: a step of 1 to count - 1 from the first.
            step = 1 + int(draw(self.seed, "second", request.serial, phase) * (count - 1))
            second = (first + step) % count
            scores[second] = float(views[second].requests)
        return scores


def _turns(chosen: int, count: int) -> list[float]:
    """How many turns after the chosen one each has its own."""
    return [float((place - chosen) % count) for place in range(count)]


@dataclass(frozen=True, slots=True)
class PrefixFirst:
    """The longest cached prefix, unless load is out of balance (SGLang gateway, `cache_aware`).

    When max - min > `imbalance_requests` and max > `imbalance_ratio` * min: the shortest queue.
    Else the best match, where it covers more than `match_rate` of the prompt (unit: minus the share
    of the prompt). Else the least loaded (unit: requests).
    """

    imbalance_requests: int = 64
    imbalance_ratio: float = 1.5
    match_rate: float = 0.3

    def __post_init__(self) -> None:
        _refuse_negative(self)

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        loads = [float(view.requests) for view in views]
        least, most = min(loads), max(loads)
        unbalanced = most - least > self.imbalance_requests and most > self.imbalance_ratio * least
        if unbalanced or not request.hits:
            return loads
        rates = [_matched_share(request, view) for view in views]
        return [-rate for rate in rates] if max(rates) > self.match_rate else loads


@dataclass(frozen=True, slots=True)
class BlockCost:
    """Blocks to prefill and blocks to decode (NVIDIA Dynamo, `kv-router`, with its weights):

    cost = max(active prefill blocks + prompt blocks - credit, 0) + active decode blocks + prompt
    blocks, credit = 1.0 device + 0.75 host + 0.25 disk blocks hit. A worker of one phase pays for
    that phase alone. Unit: KV blocks.
    """

    device_credit: float = 1.0
    host_credit: float = 0.75
    disk_credit: float = 0.25

    def __post_init__(self) -> None:
        _refuse_negative(self)

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        return [
            (self._prefill_blocks(request, view) if phase.prefills else 0.0)
            + (self._decode_blocks(request, view) if phase.decodes else 0.0)
            for view in views
        ]

    def _prefill_blocks(self, request: RequestView, view: WorkerView) -> float:
        hits = request.hit(view.worker)
        credit_tokens = (
            self.device_credit * hits.device_tokens
            + self.host_credit * hits.host_tokens
            + self.disk_credit * hits.disk_tokens
        )
        active_blocks = view.queued_prefill_tokens / view.block_size
        prompt_blocks = _prompt_blocks(request, view)
        return max(active_blocks + prompt_blocks - credit_tokens / view.block_size, 0.0)

    def _decode_blocks(self, request: RequestView, view: WorkerView) -> float:
        active_tokens = view.context_tokens + view.expected_context_tokens
        return active_tokens / view.block_size + _prompt_blocks(request, view)


@dataclass(frozen=True, slots=True)
class WeightedScore:
    """A weighted sum of three marks between 0 and 1 (llm-d-router, default weights 2, 2, 3):

    total = 2 (qmax - q) / (qmax - qmin) + 2 (1 - KV in use) + 3 matched share of the prompt, q the
    waiting requests. Unit: minus the total, since the smallest score wins.
    """

    queue_weight: float = 2.0
    kv_weight: float = 2.0
    prefix_weight: float = 3.0

    def __post_init__(self) -> None:
        _refuse_negative(self)

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        queues = [view.waiting_requests for view in views]
        longest = max(queues)
        # All equal: all get the full mark.
        spread = longest - min(queues)
        return [
            -(
                self.queue_weight * ((longest - queue) / spread if spread else 1.0)
                + self.kv_weight * (1.0 - view.kv_used)
                + self.prefix_weight * _matched_share(request, view)
            )
            for view, queue in zip(views, queues, strict=True)
        ]


def _refuse_negative(policy: PrefixFirst | BlockCost | WeightedScore) -> None:
    """Raises `InvalidConfiguration` naming the parameter."""
    for each in fields(policy):
        value = getattr(policy, each.name)
        if value < 0:
            raise InvalidConfiguration(f"{each.name} is {value:g}; choose 0 or more")


def _matched_share(request: RequestView, view: WorkerView) -> float:
    return request.hit(view.worker).tokens / request.prompt_tokens


def _prompt_blocks(request: RequestView, view: WorkerView) -> int:
    return -(-request.prompt_tokens // view.block_size)


@dataclass(frozen=True, slots=True)
class CostSeconds:
    """Tandem's own policy. A score is the seconds that are lost in all if the request goes there:
    its wait, the cheapest way to its cached prefix, the prefill of the rest, the transfer to the
    decode worker, the wait for KV room, its own decoding, and what its chunks and its decoding add
    to every neighbour's answer.

    Prefill and decode worker are chosen together: a prefill worker's score is that of its best
    pair, a decode worker's that of its pair with the chosen prefill worker. Unit: seconds.
    """

    predictor: Predictor = field(default_factory=Predictor, repr=False, compare=False)

    def choose(
        self, request: RequestView, workers: Sequence[WorkerView], now_ns: int
    ) -> Route | None:
        found = sides_for(request, workers)
        if found is None:
            return None
        quotes = self.predictor.prefill_quotes(request, found.prefill, found.phase)
        lost_s = [quote.lost_s for quote in quotes]
        if not found.decode:
            return pair(candidates(found.prefill, lost_s, quotes), ())
        by_link = quotes_by_link(self.predictor, request, found)
        least_s = {link: min(quote.lost_s for quote in by_link[link]) for link in by_link}
        links = [view.cost.network for view in found.prefill]
        scores = [own_s + least_s[link] for own_s, link in zip(lost_s, links, strict=True)]
        chosen = smallest(scores)
        decode = by_link[links[chosen]]
        decode_scores = [lost_s[chosen] + quote.lost_s for quote in decode]
        return pair(
            candidates(found.prefill, scores, quotes),
            candidates(found.decode, decode_scores, decode),
        )


ROUTINGS: Mapping[str, Callable[..., Scoring | CostSeconds]] = {
    "random": Random,
    "round-robin": RoundRobin,
    "least-load": LeastLoad,
    "power-of-two": PowerOfTwo,
    "prefix-first": PrefixFirst,
    "block-cost": BlockCost,
    "weighted-score": WeightedScore,
    "cost": CostSeconds,
}


def make_routing(name: str, seed: int = 0, **parameters: float) -> Routing:
    """A policy with its parameters; it serves one router. Those that draw no chance ignore the
    seed. Raises `InvalidConfiguration` for what a parameter cannot be."""
    make = ROUTINGS[name]
    if make in (Random, PowerOfTwo):
        return ScoredRouting(make(Seed(seed), **parameters))
    made = make(**parameters)
    return made if isinstance(made, CostSeconds) else ScoredRouting(made)
