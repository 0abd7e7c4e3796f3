"""The request queue: fair queueing by class and tenant, bounded by what may be at the workers at
once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tandem.cluster.router.request_state import RequestState
from tandem.policy.qos.classes import Classes, to_preempt
from tandem.policy.qos.fair_queue import FairQueue
from tandem.policy.views import RequestView, WorkerView


@dataclass(frozen=True, slots=True)
class RequestQueueConfig:
    """`max_requests` may be at workers at once and `prefill_depth` prompts at each prefill worker;
    what goes beyond waits (0: no bound). Tenants share by `weights`, 1 where none is given; whoever
    waited `max_wait_s` goes before them."""

    max_requests: int = 0
    prefill_depth: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    max_wait_s: float = 30.0


class RequestQueue:
    """The fair queue with the bounds of what stands behind it. `in_use` counts the requests at
    workers, by class."""

    def __init__(self, config: RequestQueueConfig, classes: Classes) -> None:
        self.config = config
        self.in_use: dict[str, int] = {}
        self._classes = classes
        self._queue = FairQueue(classes, config.weights, config.max_wait_s)
        # Of each tenant that waits: uncached prompt tokens, and requests.
        self._waiting: dict[str, tuple[int, int]] = {}
        self._tenants: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether no more requests may be at workers."""
        bound = self.config.max_requests
        return bool(bound) and sum(self.in_use.values()) >= bound

    @property
    def heeds_output(self) -> bool:
        """Whether who goes next, or goes back, may depend on the tokens drawn so far."""
        bounded = self.config.max_requests or self.config.prefill_depth
        if not bounded and not len(self):
            return False
        return len(self._tenants) > 1 or any(each.reserved for each in self._classes.classes)

    def enqueue(self, state: RequestState) -> None:
        self._tenants[state.view.tenant] = None
        self._queue.push(state.view)
        self._count(state.view, 1)

    def dequeue(self, state: RequestState) -> None:
        self._count(self._queue.remove(state.request_id), -1)

    def first(self, now_ns: int) -> str | None:
        """Who goes next, by request id; None when nobody may."""
        capacity = self.config.max_requests or sum(self.in_use.values()) + len(self)
        view = self._queue.first(self.in_use, capacity, now_ns)
        return None if view is None else view.request_id

    def enter_workers(self, state: RequestState) -> None:
        """The request goes to its workers."""
        view = state.view
        self.in_use[view.service_class] = self.in_use.get(view.service_class, 0) + 1
        self._queue.charge(view.tenant, view.prompt_tokens, 0)

    def leave_workers(self, state: RequestState) -> None:
        """The request is at no worker any more."""
        self.in_use[state.view.service_class] -= 1
        self.charge(state, 1)

    def charge(self, state: RequestState, portion_tokens: int) -> None:
        """Count the output that the tenant got since the last time, in whole portions: however many
        tokens are told at once, the counts are the same."""
        tokens = len(state.output) - state.charged_output
        tokens -= tokens % portion_tokens
        if tokens:
            self._queue.charge(state.view.tenant, 0, tokens)
            state.charged_output += tokens

    def to_give_back(self) -> dict[str, int]:
        """How many requests of each class hold slots that a class below its reserve waits for."""
        capacity = self.config.max_requests
        if not capacity or not len(self):
            return {}
        return to_preempt(self._classes, self._queue.waiting(), self.in_use, capacity)

    def before(self, workers: Sequence[WorkerView], tenant: str) -> list[WorkerView]:
        """The workers as whoever of this tenant comes last finds them: those in line will be there
        first, of each other tenant as much as of its own."""
        prefilling = sum(1 for view in workers if view.accepting and view.role.prefills)
        if not len(self) or not prefilling:
            return list(workers)
        # One more: its own request comes after one of everybody.
        own_tokens, own_requests = self._waiting.get(tenant, (0, 0))
        ahead_tokens, ahead_requests = own_tokens, own_requests
        for name, (tokens, requests) in self._waiting.items():
            if name != tenant:
                turns = min(requests, own_requests + 1)
                ahead_requests += turns
                ahead_tokens += tokens * turns // requests
        share_tokens = ahead_tokens // prefilling
        share_requests = ahead_requests // prefilling
        return [
            replace(
                view,
                queued_prefill_tokens=view.queued_prefill_tokens + share_tokens,
                waiting_requests=view.waiting_requests + share_requests,
            )
            if view.role.prefills
            else view
            for view in workers
        ]

    def _count(self, view: RequestView, requests: int) -> None:
        """So many requests more of this view wait."""
        tokens, waiting = self._waiting.get(view.tenant, (0, 0))
        self._waiting[view.tenant] = (
            tokens + requests * _uncached_tokens(view),
            waiting + requests,
        )
        if not waiting + requests:
            del self._waiting[view.tenant]


def _uncached_tokens(view: RequestView) -> int:
    """What the prompt costs whoever holds most of it: whoever is in line goes there if it can."""
    cached_tokens = max((hits.tokens for hits in view.hits.values()), default=0)
    return max(1, view.prompt_tokens - cached_tokens)
