"""Cost routing: the pair of workers that costs all requests together the fewest predicted
seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.cost.worker import LinkCost
from tandem.policy.routing.contract import Route
from tandem.policy.routing.pairing import Sides, candidates, pair, sides_for, smallest
from tandem.policy.routing.prediction import Predictor, Quote
from tandem.policy.views import RequestView, WorkerView


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
        del now_ns  # Views are already true at this instant.
        found = sides_for(request, workers)
        if found is None:
            return None
        quotes = self.predictor.prefill_quotes(request, found.prefill, found.phase)
        lost_s = [quote.lost_s for quote in quotes]
        if not found.decode:
            return pair(candidates(found.prefill, lost_s, quotes), ())
        by_link = self._decode_quotes(request, found)
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

    def _decode_quotes(self, request: RequestView, found: Sides) -> dict[LinkCost, list[Quote]]:
        """Quotes of the decode workers for each kind of link on the prefill side. All that a decode
        worker's price takes from the prefill worker is its link, and a fleet has few kinds: this is
        the whole search over pairs."""
        links = dict.fromkeys(view.cost.network for view in found.prefill)
        return {link: self.predictor.decode_quotes(request, found.decode, link) for link in links}
