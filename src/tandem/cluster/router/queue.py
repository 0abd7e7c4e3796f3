"""The request queue: fair queueing by class and tenant, bounded by what may be at the workers at
once; and beside it requests suspected of killing workers (see `deaths`).

What runs in the background takes nobody's place there, and goes when nobody else waits."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from msgspec.structs import replace

from tandem.cluster.audit import invariant
from tandem.cluster.router.fleet import Fleet
from tandem.cluster.router.request_state import RequestState, Stage
from tandem.cluster.router.use_totals import UseTotals
from tandem.policy.qos.classes import Classes, to_preempt
from tandem.policy.qos.fair_queue import FairQueue
from tandem.policy.qos.places import fair_places
from tandem.policy.views import RequestView, WorkerView


@dataclass(frozen=True, slots=True)
class RequestQueueConfig:
    """`max_requests`, of all gateways together, may be at everybody's workers at once, and of each
    gateway `prefill_depth` prompts at each prefill worker; what goes beyond waits (0: no bound).
    Tenants share by `weights`, 1 where none is given; whoever waited `max_wait_s` goes before
    them."""

    max_requests: int = 0
    prefill_depth: int = 0
    weights: Mapping[str, float] = field(default_factory=dict)
    max_wait_s: float = 30.0


class RequestQueue:
    """The fair queue with the bounds of what stands behind it. `in_use` counts the requests at
    those workers of the `fleet` that are everybody's, by class; `use` counts what tenants get."""

    def __init__(
        self,
        config: RequestQueueConfig,
        classes: Classes,
        fleet: Fleet,
        use: UseTotals | None = None,
    ) -> None:
        self.config = config
        self.in_use: dict[str, int] = {}
        # How many may be at workers from here, beside what other gateways want.
        self._places = config.max_requests
        self._wanted_elsewhere: tuple[int, ...] = ()
        self._classes, self._fleet = classes, fleet
        self._use = use or UseTotals()
        # At workers, without places.
        self.in_background = 0
        self._queue = FairQueue(classes, config.weights, config.max_wait_s)
        # Of each class and each tenant that waits: uncached prompt tokens, requests.
        self._waiting: dict[tuple[str, str], tuple[int, int]] = {}
        self._tenants: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether no more requests may be at everybody's workers."""
        bound = self._places
        return bool(bound) and sum(self.in_use.values()) >= bound

    @property
    def depends_on_output(self) -> bool:
        """Whether who goes next, or goes back, may depend on the tokens drawn so far."""
        bounded = self.config.max_requests or self.config.prefill_depth
        if not bounded and not len(self):
            return False
        return len(self._tenants) > 1 or any(each.reserved for each in self._classes.classes)

    def reconfigure(
        self, config: RequestQueueConfig, classes: Classes, requests: Iterable[RequestState]
    ) -> None:
        """Other bounds, weights and classes from now on, for all these requests, waiting or at
        workers. Who waits goes on waiting; a request whose class is gone is of the one that its
        tenant has now, and keeps the deadline, SLO and priority that it came with."""
        self._queue.reconfigure(classes, config.weights, config.max_wait_s)
        self.config, self._classes = config, classes
        self._share_places()
        self._waiting.clear()
        for view in self._queue:
            self._count(view, 1)
        for state in requests:
            self._free_place(state)
            self.classify(state)
            if state.stage is not Stage.QUEUED:
                self._take_place(state)

    def classify(self, state: RequestState) -> None:
        """Have the request be of a class that there is now: at workers, of one that has the model
        which answers it, if there is one. Who waits with tokens is bound to that, too."""
        view, classes = state.view, self._classes
        service = classes.named(classes.standing(view.service_class, view.tenant))
        if state.stage is not Stage.QUEUED and service.model != view.model:
            same = (each for each in classes.classes if each.model == view.model)
            service = next(same, service if view.model else classes.unnamed)
        if service.name != view.service_class:
            state.view = replace(view, service_class=service.name)
        if state.stage is Stage.QUEUED and not state.output:
            state.bind_to(service)

    def enqueue(self, state: RequestState) -> None:
        tenant = state.view.tenant
        self._tenants[tenant] = None
        self._use.note(tenant)
        self._queue.push(state.view)
        self._count(state.view, 1)

    def dequeue(self, state: RequestState) -> None:
        self._count(self._queue.remove(state.request_id), -1)
        self._use.note(state.view.tenant)

    def first(self, now_ns: int, without: Set[str] = frozenset()) -> str | None:
        """Who goes next, by request id, `without` these classes; None when nobody may."""
        in_use, on_own = self.in_use, self._fleet.on_own
        if on_own and self.full:
            # Whom its own workers serve needs no place.
            without, in_use = without | (self._queue.waiting().keys() - on_own), {}
        capacity = self._places or sum(in_use.values()) + len(self)
        view = self._queue.first(in_use, capacity, now_ns, without)
        return None if view is None else view.request_id

    def enter_workers(self, state: RequestState) -> None:
        """The request goes to its workers."""
        view = state.view
        self._take_place(state)
        self._queue.charge(view.tenant, view.prompt_tokens, 0)
        self._use.served(view.tenant, view.prompt_tokens, 0)

    def leave_workers(self, state: RequestState) -> None:
        """The request is at no worker any more."""
        self._free_place(state)
        self._use.note(state.view.tenant)
        self.charge(state, 1)

    def charge(self, state: RequestState, portion_tokens: int) -> None:
        """Count the output that the tenant got since the last time, in whole portions: however many
        tokens are reported at once, the counts are the same."""
        tokens = len(state.output) - state.charged_output
        tokens -= tokens % portion_tokens
        if tokens:
            self._queue.charge(state.view.tenant, 0, tokens)
            self._use.served(state.view.tenant, 0, tokens)
            state.charged_output += tokens

    def to_give_back(self) -> dict[str, int]:
        """How many requests of each class have places that a class below its reserve waits for."""
        capacity = self._places
        if not capacity or not len(self):
            return {}
        waiting = self._queue.awaited()
        for name in self._fleet.on_own:
            waiting.pop(name, None)
        return to_preempt(self._classes, waiting, self.in_use, capacity)

    def is_full_for(self, service_class: str) -> bool:
        """Whether no more requests of this class may be at workers."""
        return self.full and service_class not in self._fleet.on_own

    @property
    def wanted_places(self) -> int:
        """The requests at everybody's workers, or in the queue for them."""
        waiting, on_own = len(self), self._fleet.on_own
        if on_own and waiting:
            by_class = self._queue.waiting()
            waiting -= sum(by_class.get(name, 0) for name in on_own)
        return sum(self.in_use.values()) + waiting

    def waiting_classes(self) -> dict[str, list[str]]:
        """The classes in which each tenant has requests that wait."""
        found: dict[str, list[str]] = {}
        for service_class, tenant in self._waiting:
            found.setdefault(tenant, []).append(service_class)
        return found

    def served_elsewhere(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        """The tenant got service at another gateway."""
        self._queue.served_elsewhere(tenant, input_tokens, output_tokens)

    def set_elsewhere(self, wanted: Iterable[int], waiting: Mapping[str, Iterable[str]]) -> None:
        """So many places at workers each of the other gateways has `wanted`, and these tenants wait
        there, by class."""
        self._wanted_elsewhere = tuple(wanted)
        self._queue.waiting_elsewhere = waiting
        self._share_places()

    def before(
        self, workers: Sequence[WorkerView], request: RequestView, *, by_class: bool = False
    ) -> list[WorkerView]:
        """The workers as a request finds them that comes last: those that wait will be there first,
        of each other tenant as much as of its own; `by_class` none of a less urgent class."""
        if not len(self):
            return list(workers)
        prefilling = sum(1 for view in workers if view.accepting and view.role.prefills)
        if not prefilling:
            return list(workers)
        named, tenant = self._classes.named, request.tenant
        own_priority = named(request.service_class).priority
        waiting: dict[str, tuple[int, int]] = {}
        for (service_class, name), (tokens, requests) in self._waiting.items():
            if not self._fleet.share_workers(request.service_class, service_class):
                continue
            if not by_class or named(service_class).priority <= own_priority:
                more_tokens, more_requests = waiting.get(name, (0, 0))
                waiting[name] = (more_tokens + tokens, more_requests + requests)
        # One more: its own request comes after one of everybody.
        own_tokens, own_requests = waiting.pop(tenant, (0, 0))
        ahead_tokens, ahead_requests = own_tokens, own_requests
        for tokens, requests in waiting.values():
            turns = min(requests, own_requests + 1)
            ahead_requests += turns
            ahead_tokens += tokens * turns // requests
        share_tokens = ahead_tokens // prefilling
        share_requests = ahead_requests // prefilling
        if not share_requests and not share_tokens:
            return list(workers)
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

    def _take_place(self, state: RequestState) -> None:
        """It is at workers; one that is at its class's own takes nobody's place."""
        if state.view.in_background:
            self.in_background += 1
            state.runs_in_background = True
        elif not self._fleet.dedicated_to(state.decode):
            name = state.view.service_class
            self.in_use[name] = self.in_use.get(name, 0) + 1
            state.has_place = True

    def _free_place(self, state: RequestState) -> None:
        if state.has_place:
            self.in_use[state.view.service_class] -= 1
            state.has_place = False
        if state.runs_in_background:
            self.in_background -= 1
            state.runs_in_background = False

    def _share_places(self) -> None:
        bound = self.config.max_requests
        self._places = bound and fair_places(bound, self._wanted_elsewhere)

    def _count(self, view: RequestView, requests: int) -> None:
        """So many requests more of this view wait, if anybody waits for them."""
        if view.in_background:
            return
        waits = (view.service_class, view.tenant)
        tokens, waiting = self._waiting.get(waits, (0, 0))
        self._waiting[waits] = (tokens + requests * _uncached_tokens(view), waiting + requests)
        if not waiting + requests:
            del self._waiting[waits]


def _uncached_tokens(view: RequestView) -> int:
    """What the prompt costs whoever holds most of it: one that waits goes there if it can."""
    cached_tokens = max((hits.tokens for hits in view.hits.values()), default=0)
    return max(1, view.prompt_tokens - cached_tokens)


class Suspects:
    """By request id. `waiting` are at no worker, in the order in which they are to start, beside
    the `queue` of all others; `running` are at workers."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self.waiting: dict[str, RequestState] = {}
        self.running: dict[str, RequestState] = {}

    @property
    def all_waiting(self) -> int:
        """Requests that are at no worker, suspects or not."""
        return len(self._queue) + len(self.waiting)

    def workers(self) -> set[str]:
        """Where there is one."""
        return {worker for each in self.running.values() for worker in _workers_of(each)}

    def enqueue(self, state: RequestState) -> None:
        """It waits here if it is a suspect, else in the queue."""
        if state.deaths.suspect:
            self.waiting[state.request_id] = state
        else:
            self._queue.enqueue(state)

    def dequeue(self, state: RequestState) -> None:
        """It will not go on."""
        if self.waiting.pop(state.request_id, None) is None:
            self._queue.dequeue(state)

    def starts(self, state: RequestState) -> None:
        """It goes to workers now, where no other is."""
        del self.waiting[state.request_id]
        self.running[state.request_id] = state

    def leaves(self, state: RequestState) -> None:
        """It is at no worker any more, or no suspect. Others, too, may leave."""
        self.running.pop(state.request_id, None)

    def audit(self, on_their_way: Sequence[RequestState]) -> None:
        """Raises `InvariantBroken` unless all suspects are here, and no two share a worker."""
        running = {each.request_id: each for each in on_their_way if each.deaths.suspect}
        invariant(running == self.running, "suspects at workers are known")
        suspected = all(each.deaths.suspect for each in self.waiting.values())
        invariant(suspected, "requests that wait beside the queue are suspects")
        workers = [worker for each in running.values() for worker in _workers_of(each)]
        invariant(len(workers) == len(set(workers)), "no two suspects are at one worker")


class LivenessChecks:
    """Requests that were sent to a worker after another died with them, until its next report."""

    def __init__(self) -> None:
        self._awaited: dict[str, list[tuple[RequestState, int, int]]] = {}

    def sent(self, state: RequestState, worker: str, events: int) -> None:
        """Its report is awaited: so many events had been sent to the worker before."""
        if state.deaths.total:
            entry = state, state.names.attempt, events
            self._awaited.setdefault(worker, []).append(entry)

    def report_received(self, worker: str, events: int | None) -> None:
        """The worker lives, and has received so many events (None: all)."""
        if worker not in self._awaited:
            return
        left = []
        for state, attempt, before in self._awaited.pop(worker):
            if events is not None and events <= before:
                left.append((state, attempt, before))
            elif state.names.attempt == attempt:
                state.deaths.reported.add(worker)
        if left:
            self._awaited[worker] = left

    def lost(self, worker: str) -> None:
        """No report of it will come any more."""
        self._awaited.pop(worker, None)


def _workers_of(state: RequestState) -> set[str]:
    return {name for name in (state.prefill, state.decode) if state.needs(name)}
