"""Dispatch of very long batch prompts to workers set apart, such as CPU workers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.policy.dispatch.contract import Dispatch, Dispatching, Placement, Transfer
from tandem.policy.dispatch.rules import AlwaysRemote
from tandem.policy.routing.contract import Route
from tandem.policy.routing.prediction import Predictor
from tandem.policy.views import RequestView, WorkerView

LONG_TOKENS = 32_768
LEAST_PRIORITY = 1


@dataclass(frozen=True, slots=True)
class LongPrompts:
    """A prompt of more than `long_tokens` (not cached at the routed prefill worker) whose priority
    number is at least `least_priority` is prefilled by one of `workers`, the one that is done
    first. Everything else, and everything while none of them accepts, is `inner`'s."""

    workers: tuple[str, ...]
    long_tokens: int = LONG_TOKENS
    least_priority: int = LEAST_PRIORITY
    transfer: Transfer = Transfer.PUSH
    inner: Dispatching = field(default_factory=AlwaysRemote)
    predictor: Predictor = field(default_factory=Predictor, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.workers:
            raise InvalidConfiguration(
                "workers is empty; name the workers that take long prompts, or leave the policy out"
            )
        if self.long_tokens < 1:
            raise InvalidConfiguration(f"long_tokens is {self.long_tokens}; choose 1 or more")

    def decide(
        self, request: RequestView, route: Route, workers: Sequence[WorkerView], now_ns: int
    ) -> Dispatch:
        uncached = request.uncached_tokens(route.prefill)
        if uncached > self.long_tokens and request.priority >= self.least_priority:
            chosen = self._first_done(request, workers)
            if chosen:
                reason = (
                    f"{uncached:,} prompt tokens of priority {request.priority} go to {chosen}, "
                    f"one of the workers for prompts above {self.long_tokens:,}"
                )
                placement = Placement.LOCAL if chosen == route.decode else Placement.DIRECT
                return Dispatch(placement, self.transfer, chosen, route.decode, reason)
        return self.inner.decide(request, route, workers, now_ns)

    def _first_done(self, request: RequestView, workers: Sequence[WorkerView]) -> str:
        """The accepting worker of the set with the earliest first token; empty if none."""
        views = [
            view
            for view in workers
            if view.worker in self.workers and view.accepting and view.role.prefills
        ]
        quotes = self.predictor.prefill_quotes(request, views, Role.PREFILL)
        priced = [(quote.ttft_s, view.worker) for quote, view in zip(quotes, views, strict=True)]
        return min(priced, default=(0.0, ""))[1]
