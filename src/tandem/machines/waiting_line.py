"""Who stands before the workers, who may go next, and what everybody there uses by class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tandem.machines.passage import Passage
from tandem.policy.qos.classes import Classes, to_preempt
from tandem.policy.qos.fair_queue import FairQueue
from tandem.policy.views import RequestView, WorkerView


@dataclass(frozen=True, slots=True)
class LineConfig:
    """`max_requests` may be at workers at once and `prefill_depth` prompts at each prefill worker;
    what goes beyond waits (0: no bound). Tenants share by `weights`, 1 where none is given; whoever
    waited `max_wait_s` goes before them."""

    max_requests: int = 0
    prefill_depth: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    max_wait_s: float = 30.0


class WaitingLine:
    """The fair queue with the bounds of what stands behind it. `in_use` counts the requests at
    workers, by class."""

    def __init__(self, config: LineConfig, classes: Classes) -> None:
        self.config = config
        self.in_use: dict[str, int] = {}
        self._classes = classes
        self._queue = FairQueue(classes, config.weights, config.max_wait_s)
        self._waiting_tokens = 0
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

    def wait(self, passage: Passage) -> None:
        self._tenants[passage.view.tenant] = None
        self._queue.push(passage.view)
        self._waiting_tokens += _uncached_tokens(passage.view)

    def wait_no_more(self, passage: Passage) -> None:
        self._waiting_tokens -= _uncached_tokens(self._queue.remove(passage.request_id))

    def first(self, now_ns: int) -> str | None:
        """Who goes next, by request id; None when nobody may."""
        capacity = self.config.max_requests or sum(self.in_use.values()) + len(self)
        view = self._queue.first(self.in_use, capacity, now_ns)
        return None if view is None else view.request_id

    def enter(self, passage: Passage) -> None:
        """The request goes to its workers."""
        view = passage.view
        self.in_use[view.service_class] = self.in_use.get(view.service_class, 0) + 1
        self._queue.charge(view.tenant, view.prompt_tokens, 0)

    def leave(self, passage: Passage) -> None:
        """The request is at no worker any more."""
        self.in_use[passage.view.service_class] -= 1
        self.charge(passage, 1)

    def charge(self, passage: Passage, portion_tokens: int) -> None:
        """Count the output that the tenant got since the last time, in whole portions: however many
        tokens are told at once, the counts are the same."""
        tokens = len(passage.output) - passage.charged_output
        tokens -= tokens % portion_tokens
        if tokens:
            self._queue.charge(passage.view.tenant, 0, tokens)
            passage.charged_output += tokens

    def to_give_back(self) -> dict[str, int]:
        """How many requests of each class hold slots that a class below its reserve waits for."""
        capacity = self.config.max_requests
        if not capacity or not len(self):
            return {}
        return to_preempt(self._classes, self._queue.waiting(), self.in_use, capacity)

    def before(self, workers: Sequence[WorkerView]) -> list[WorkerView]:
        """The workers as whoever comes last finds them: those in line will be there first."""
        prefilling = sum(1 for view in workers if view.accepting and view.role.prefills)
        if not len(self) or not prefilling:
            return list(workers)
        share_tokens = self._waiting_tokens // prefilling
        share_requests = len(self) // prefilling
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


def _uncached_tokens(view: RequestView) -> int:
    """What the prompt costs whoever holds most of it: whoever is in line goes there if it can."""
    cached_tokens = max((hits.tokens for hits in view.hits.values()), default=0)
    return max(1, view.prompt_tokens - cached_tokens)
