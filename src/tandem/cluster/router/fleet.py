"""The router's view of the workers: role, last reported load, and what was sent to each since that
report."""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from tandem.cost.worker import WorkerCost
from tandem.facts.fleet import Role
from tandem.facts.slo import LEAST_URGENT, MOST_URGENT
from tandem.messages.router import LoadReported
from tandem.policy.qos.classes import NO_CLASSES, Classes
from tandem.policy.views import RequestView, WorkerView

_NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one kind of worker can hold, and what its work costs. Its `pool` may be some service
    classes' own, and serve another `model` than the cluster's (empty)."""

    cost: WorkerCost
    block_size: int
    block_count: int
    max_sequences: int
    pool: str = ""
    model: str = ""


# The weight of the newest prompt in what is typical of a worker's.
RECENT = 0.1


class SentLoad(Struct):
    """What was sent to a worker and its last report leaves out."""

    requests: int = 0
    prefill_tokens: int = 0
    blocks: int = 0
    decodes: int = 0
    context_tokens: int = 0

    def minus(self, other: "SentLoad") -> "SentLoad":
        return SentLoad(
            self.requests - other.requests,
            self.prefill_tokens - other.prefill_tokens,
            self.blocks - other.blocks,
            self.decodes - other.decodes,
            self.context_tokens - other.context_tokens,
        )


class ByPriority:
    """Requests of this router that are counted at one worker: by name, their priority and tokens as
    they were then. Of a large fleet most have none: that `requests` are empty is asked often."""

    def __init__(self) -> None:
        self.requests: dict[str, tuple[int, int]] = {}
        # Of each priority: tokens and requests.
        self._sums: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[str]:
        return iter(self.requests)

    @property
    def tokens(self) -> int:
        """Of all of them."""
        return sum(tokens for tokens, _ in self._sums.values())

    def add(self, name: str, priority: int, tokens: int) -> None:
        self.requests[name] = (priority, tokens)
        self._count(priority, tokens, 1)

    def discard(self, name: str) -> None:
        if found := self.requests.pop(name, None):
            priority, tokens = found
            self._count(priority, -tokens, -1)

    def split(self, priority: int) -> tuple[int, int, int]:
        """Tokens that go before one more of this priority, and tokens and requests that wait for
        it."""
        before_tokens = after_tokens = after_requests = 0
        for other, (tokens, requests) in self._sums.items():
            if other > priority:
                after_tokens += tokens
                after_requests += requests
            else:
                before_tokens += tokens
        return before_tokens, after_tokens, after_requests

    def _count(self, priority: int, tokens: int, requests: int) -> None:
        before = self._sums.get(priority, (0, 0))
        self._sums[priority] = (before[0] + tokens, before[1] + requests)
        if not before[1] + requests:
            del self._sums[priority]


@dataclass(slots=True)
class TrackedWorker:
    """One worker. `sent` is what its last `report` leaves out; `sent_by` has what that was when so
    many events had been sent to it, of `events_sent` in all. `prefilling` are the requests whose
    prompt is here, by wire id, with its uncached tokens; `expected` those that will decode here and
    are still computed elsewhere, by request id, with all of their tokens. `view` is all that as
    policies see it, until something changes; `views_ahead` as a request of some priority does, made
    of `view`. `adapters` are the digests of those that it was sent requests for, newest last."""

    role: Role
    capacity: Capacity
    report: LoadReported
    reported_ns: int
    accepting: bool = True
    sent: SentLoad = field(default_factory=SentLoad)
    typical_prefill_tokens: float | None = None
    prefilling: ByPriority = field(default_factory=ByPriority)
    expected: ByPriority = field(default_factory=ByPriority)
    view: WorkerView | None = None
    views_ahead: tuple[WorkerView, dict[int, WorkerView]] | None = None
    adapters: dict[str, None] = field(default_factory=dict)
    events_sent: int = 0
    sent_by: deque[tuple[int, SentLoad]] = field(default_factory=deque)

    def prompts_before(self, request: RequestView | None) -> int:
        """How many prompts are here that one more does not go before: those that somebody waits for
        go before the others."""
        if request is not None and request.in_background:
            return len(self.prefilling)
        _, _, in_background = self.prefilling.split(LEAST_URGENT)
        return len(self.prefilling) - in_background

    @property
    def decodes_more(self) -> bool:
        """Whether requests may come here to decode."""
        return self.accepting and self.role.decodes


@dataclass(frozen=True, slots=True)
class OpenWorkers:
    """Which workers requests may go to now, as places in the order of all: `own` of each class that
    its own workers serve, `shared` of each model for all others."""

    own: Mapping[str, list[int]]
    shared: Mapping[str, list[int]]


class Fleet:
    """All living workers by id. Some may be for some of the `classes` alone. Each is taken to hold
    the `held_adapters` that it needed last."""

    def __init__(
        self,
        capacities: Mapping[str, Capacity],
        classes: Classes = NO_CLASSES,
        held_adapters: int = 1,
    ) -> None:
        self._capacities = capacities
        self._held_adapters = held_adapters
        self.workers: dict[str, TrackedWorker] = {}
        self._order: list[str] = []
        # Whether a worker has ever served another model than the cluster's.
        self._several_models = False
        # None: to be looked up anew.
        self._open: OpenWorkers | None = None
        self.reconfigure(classes)

    def join(self, worker: str, role: Role, now_ns: int) -> None:
        capacity = self._capacities[worker]
        report = LoadReported(worker, 0, 0, 0, 0, capacity.block_count)
        if worker not in self.workers:
            insort(self._order, worker)
        self.workers[worker] = TrackedWorker(role, capacity, report, now_ns)
        self._several_models = self._several_models or capacity.model != ""
        self._open = None

    def reprice(self, worker: str, capacity: Capacity) -> None:
        """From now on its work costs that."""
        tracked = self.workers.get(worker)
        if tracked is not None:
            tracked.capacity, tracked.view = capacity, None

    def lose(self, worker: str) -> None:
        self.workers.pop(worker, None)
        self._order = sorted(self.workers)
        self._open = None

    def report(self, load: LoadReported, now_ns: int) -> None:
        """A report replaces what was guessed of the events that the worker had received by then;
        that of a lost worker is ignored."""
        tracked = self.workers.get(load.worker)
        if tracked is not None:
            if load == tracked.report and not tracked.sent.requests + tracked.sent.decodes:
                return
            tracked.report, tracked.reported_ns, tracked.view = load, now_ns, None
            if load.received_events is not None:
                _forget_received(tracked, load.received_events)
                return
            tracked.sent_by.clear()
            tracked.sent = SentLoad()

    def events_sent(self, worker: str, events: int) -> None:
        """So many events go out to the worker: with the last of them it has all that was sent to
        it. Only for workers that report how many they have received."""
        tracked = self.workers.get(worker)
        if tracked is None:
            return
        tracked.events_sent += events
        sent = tracked.sent
        last = tracked.sent_by[-1][1] if tracked.sent_by else SentLoad()
        if (last.requests, last.decodes) != (sent.requests, sent.decodes):
            tracked.sent_by.append((tracked.events_sent, replace(sent)))

    def send(self, worker: str, prefill_tokens: int, known_tokens: int) -> None:
        """A request whose prompt is to be computed here went out."""
        tracked = self.workers[worker]
        tracked.view = None
        tracked.sent.requests += 1
        tracked.sent.prefill_tokens += prefill_tokens
        typical = tracked.typical_prefill_tokens
        tracked.typical_prefill_tokens = (
            float(prefill_tokens)
            if typical is None
            else typical + RECENT * (prefill_tokens - typical)
        )
        tracked.sent.blocks += -(-known_tokens // tracked.capacity.block_size)

    def needs_adapter(self, worker: str, adapter: str) -> None:
        """A request with this adapter goes there: from then on it is held there."""
        tracked = self.workers[worker]
        adapters = tracked.adapters
        if adapter not in adapters:
            tracked.view = None
        adapters.pop(adapter, None)
        adapters[adapter] = None
        if len(adapters) > self._held_adapters:
            del adapters[next(iter(adapters))]

    def expect_decode(
        self, worker: str, request_id: str, known_tokens: int, priority: int = MOST_URGENT
    ) -> None:
        """A request will decode here once its prompt is computed elsewhere, behind all prompts of a
        smaller `priority`; by default it is computed already."""
        tracked = self.workers[worker]
        tracked.view = None
        tracked.expected.add(request_id, priority, known_tokens)

    def decode_arrived(self, worker: str, request_id: str, known_tokens: int) -> None:
        """An expected request decodes here from now on, which its next report will include."""
        self.expect_no_decode(worker, request_id)
        tracked = self.workers.get(worker)
        if tracked is not None:
            tracked.sent.decodes += 1
            tracked.sent.context_tokens += known_tokens

    def expect_no_decode(self, worker: str, request_id: str) -> None:
        tracked = self.workers.get(worker)
        if tracked is not None:
            tracked.view = None
            tracked.expected.discard(request_id)

    def drain(self, worker: str) -> None:
        """From now on it takes no new requests."""
        tracked = self.workers[worker]
        tracked.accepting, tracked.view = False, None
        self._open = None

    def take_role(self, worker: str, role: Role) -> None:
        tracked = self.workers[worker]
        tracked.role, tracked.accepting, tracked.view = role, True, None
        self._open = None

    def views(self) -> list[WorkerView]:
        """Every living worker, by id; the same objects as long as nothing changed."""
        return [
            tracked.view or self._look(worker, tracked)
            for worker in self._order
            for tracked in (self.workers[worker],)
        ]

    def views_ahead(self, priority: int) -> list[WorkerView]:
        """Every living worker as a request of this priority finds it: prompts of less urgent ones
        wait for it there, as far as this router sent them, and come to decode after it."""
        views = self.views()
        for place, worker in enumerate(self._order):
            tracked = self.workers[worker]
            if tracked.prefilling.requests or tracked.expected.requests:
                views[place] = _ahead(views[place], tracked, priority)
        return views

    def open_to(self, request: RequestView, views: list[WorkerView]) -> list[WorkerView]:
        """Of the views of all workers, those that this request may go to: of its class's own pools
        while they take both phases, else those that are nobody's own. None that serves another
        model than the one that answers it."""
        if not (self._dedicated or self._several_models or request.model):
            return views
        open_now = self._open_now()
        places = open_now.shared.get(request.model, [])
        if self._models.get(request.service_class, "") == request.model:
            places = open_now.own.get(request.service_class, places)
        return [views[place] for place in places]

    @property
    def on_own(self) -> Set[str]:
        """The classes that their own workers serve now; everybody's serve all others."""
        return self._open_now().own.keys() if self._dedicated else _NOBODY

    def share_workers(self, one: str, other: str) -> bool:
        """Whether requests of these classes may go to the same workers now."""
        on_own = self.on_own
        if one in on_own and other in on_own:
            return self._classes.share_workers(one, other)
        return one not in on_own and other not in on_own

    def replaces(self, worker: str, other: str) -> bool:
        """Whether it may go on with what the other one has: it serves the same model, and the same
        classes."""
        one, another = self.workers[worker].capacity, self.workers[other].capacity
        alike = one.model == another.model
        return alike and self.dedicated_to(worker) == self.dedicated_to(other)

    def dedicated_to(self, worker: str) -> frozenset[str]:
        """The classes whose own the worker is; none: it is everybody's."""
        if not self._dedicated:
            return _NOBODY
        return self._dedicated.get(self.workers[worker].capacity.pool, _NOBODY)

    def reconfigure(self, classes: Classes) -> None:
        """Other classes have pools of their own from now on."""
        self._classes = classes
        pools = {pool for each in classes.classes for pool in each.pools}
        self._dedicated = {pool: classes.dedicated_to(pool) for pool in pools}
        self._models = {each.name: each.model for each in classes.classes}
        self._open = None

    def accepting(self) -> Iterable[TrackedWorker]:
        return (tracked for tracked in self.workers.values() if tracked.accepting)

    def _open_now(self) -> OpenWorkers:
        if self._open is None:
            own: dict[str, list[int]] = {}
            shared: dict[str, list[int]] = {}
            for place, worker in enumerate(self._order):
                whose = self.dedicated_to(worker)
                for name in whose:
                    own.setdefault(name, []).append(place)
                if not whose:
                    shared.setdefault(self.workers[worker].capacity.model, []).append(place)
            serving = {name: places for name, places in own.items() if self._take_both(places)}
            # Nobody else serves the model of these, also while there is nobody.
            serving |= {name: own.get(name, []) for name, model in self._models.items() if model}
            self._open = OpenWorkers(serving, shared)
        return self._open

    def _take_both(self, places: Iterable[int]) -> bool:
        """Whether the workers at these places take requests in both phases."""
        workers = [self.workers[self._order[place]] for place in places]
        roles = [each.role for each in workers if each.accepting]
        return any(role.prefills for role in roles) and any(role.decodes for role in roles)

    def _look(self, worker: str, tracked: TrackedWorker) -> WorkerView:
        report, sent, capacity = tracked.report, tracked.sent, tracked.capacity
        tracked.view = WorkerView(
            worker=worker,
            role=tracked.role,
            cost=capacity.cost,
            as_of_ns=tracked.reported_ns,
            accepting=tracked.accepting,
            running_sequences=report.running_sequences + sent.decodes,
            waiting_requests=report.waiting_requests + sent.requests,
            queued_prefill_tokens=report.queued_prefill_tokens + sent.prefill_tokens,
            context_tokens=report.context_tokens + sent.context_tokens,
            expected_decodes=len(tracked.expected),
            expected_context_tokens=tracked.expected.tokens,
            typical_prefill_tokens=round(tracked.typical_prefill_tokens or 0),
            max_sequences=capacity.max_sequences,
            block_size=capacity.block_size,
            total_blocks=capacity.block_count,
            free_blocks=max(0, report.free_blocks - sent.blocks),
            adapters=frozenset(tracked.adapters),
        )
        return tracked.view


def _ahead(view: WorkerView, tracked: TrackedWorker, priority: int) -> WorkerView:
    before_tokens, after_tokens, after_requests = tracked.prefilling.split(priority)
    _, later_tokens, later_decodes = tracked.expected.split(priority)
    if not after_requests and not later_decodes:
        return view
    if tracked.views_ahead is None or tracked.views_ahead[0] is not view:
        tracked.views_ahead = (view, {})
    known = tracked.views_ahead[1]
    if priority not in known:
        queued_tokens = view.queued_prefill_tokens
        # What waits has been begun perhaps: at least what goes before it is left. And the step
        # under way is not pushed aside, whoever's it is.
        least_tokens = before_tokens + view.cost.chunk_tokens
        ahead_tokens = max(queued_tokens - after_tokens, min(queued_tokens, least_tokens))
        known[priority] = replace(
            view,
            queued_prefill_tokens=ahead_tokens,
            waiting_requests=max(0, view.waiting_requests - after_requests),
            expected_decodes=view.expected_decodes - later_decodes,
            expected_context_tokens=view.expected_context_tokens - later_tokens,
        )
    return known[priority]


def _forget_received(tracked: TrackedWorker, events: int) -> None:
    """The worker's report includes what was sent to it with the first `events` events."""
    received = None
    while tracked.sent_by and tracked.sent_by[0][0] <= events:
        received = tracked.sent_by.popleft()[1]
    if received is not None:
        tracked.sent = tracked.sent.minus(received)
        tracked.sent_by = deque((at, later.minus(received)) for at, later in tracked.sent_by)
