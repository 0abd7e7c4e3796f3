"""From scores to a route: the best worker of each phase, with the reasons for the choice."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Protocol

from tandem.cost.worker import LinkCost
from tandem.facts.fleet import Role
from tandem.policy.routing.contract import Candidate, Route
from tandem.policy.routing.prediction import Predictor, Quote
from tandem.policy.views import RequestView, WorkerView

_by_id = attrgetter("worker")


class Scoring(Protocol):
    """Scores of workers that stand for one phase (BOTH: for the whole request), smallest first.
    The views come in order of their ids, all of them accepting."""

    def scores(
        self, request: RequestView, views: Sequence[WorkerView], phase: Role
    ) -> list[float]: ...


class Sides(NamedTuple):
    """Who may compute the prompt and who may talk, by id; `decode` is empty where a worker does
    both."""

    prefill: list[WorkerView]
    decode: list[WorkerView]

    @property
    def phase(self) -> Role:
        return Role.PREFILL if self.decode else Role.BOTH


def sides(workers: Sequence[WorkerView]) -> Sides | None:
    """A pair of specialists where both kinds accept work, else a worker of role BOTH."""
    accepting = sorted((view for view in workers if view.accepting), key=_by_id)
    prefill = [view for view in accepting if view.role is Role.PREFILL]
    decode = [view for view in accepting if view.role is Role.DECODE]
    if prefill and decode:
        return Sides(prefill, decode)
    both = [view for view in accepting if view.role is Role.BOTH]
    return Sides(both, []) if both else None


def sides_for(request: RequestView, workers: Sequence[WorkerView]) -> Sides | None:
    """Of those whose memory can hold the prompt, if there are such; the others would refuse it."""
    prompt_tokens = request.prompt_tokens
    large = [view for view in workers if view.total_blocks * view.block_size > prompt_tokens]
    return sides(large) or sides(workers)


def smallest(scores: Sequence[float]) -> int:
    """The place of the smallest score, the first of equals: views come by id."""
    return scores.index(min(scores))


def candidates(
    views: Sequence[WorkerView], scores: Sequence[float], quotes: Sequence[Quote]
) -> tuple[Candidate, ...]:
    return tuple(
        [
            Candidate(view.worker, score, quote.ttft_s, quote.tpot_s)
            for view, score, quote in zip(views, scores, quotes, strict=True)
        ]
    )


def pair(prefill: tuple[Candidate, ...], decode: tuple[Candidate, ...]) -> Route:
    """The route of the smallest scores. The second token waits for the KV at the decode worker, so
    its seconds until then count to the first token's: never promised too early."""
    first = prefill[smallest([candidate.score for candidate in prefill])]
    if not decode:
        return Route(first.worker, first.worker, first.ttft_s, first.tpot_s, prefill)
    second = decode[smallest([candidate.score for candidate in decode])]
    ttft_s = first.ttft_s + second.ttft_s
    return Route(first.worker, second.worker, ttft_s, second.tpot_s, prefill, decode)


def quotes_by_link(
    predictor: Predictor, request: RequestView, found: Sides
) -> dict[LinkCost, list[Quote]]:
    """Quotes of the decode workers for each kind of link on the prefill side. All that a decode
    worker's price takes from the prefill worker is its link, and a fleet has few kinds: this is the
    whole search over pairs."""
    links = dict.fromkeys(view.cost.network for view in found.prefill)
    return {link: predictor.decode_quotes(request, found.decode, link) for link in links}


@dataclass(frozen=True, slots=True)
class ScoredRouting:
    """A routing policy that scores each phase on its own."""

    scoring: Scoring
    predictor: Predictor = field(default_factory=Predictor, repr=False, compare=False)

    def choose(
        self, request: RequestView, workers: Sequence[WorkerView], now_ns: int
    ) -> Route | None:
        found = sides_for(request, workers)
        if found is None:
            return None
        scores = self.scoring.scores(request, found.prefill, found.phase)
        quotes = self.predictor.prefill_quotes(request, found.prefill, found.phase)
        prefill = candidates(found.prefill, scores, quotes)
        if not found.decode:
            return pair(prefill, ())
        source = found.prefill[smallest(scores)].cost.network
        scores = self.scoring.scores(request, found.decode, Role.DECODE)
        quotes = self.predictor.decode_quotes(request, found.decode, source)
        return pair(prefill, candidates(found.decode, scores, quotes))
