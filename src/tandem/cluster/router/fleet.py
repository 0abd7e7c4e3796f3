"""The router's view of the workers: role, last reported load, and what was sent to each since that
report."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tandem.cost.worker import WorkerCost
from tandem.facts.fleet import Role
from tandem.messages.router import LoadReported
from tandem.policy.views import WorkerView


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one kind of worker can hold, and what its work costs."""

    cost: WorkerCost
    block_size: int
    block_count: int
    max_sequences: int


@dataclass(frozen=True, slots=True)
class Sent:
    """What had been sent to a worker by the time it had been told `told` events, of what its last
    report leaves out: the `sent_` figures of then."""

    told: int
    requests: int
    prefill_tokens: int
    blocks: int
    decodes: int
    context_tokens: int


@dataclass(slots=True)
class TrackedWorker:
    """One worker. `report` is its last word; the `sent_` figures are what that leaves out, and
    `unheard` how they grew, if the events `told` to the worker are counted. `expected_` count
    requests whose prefill still runs elsewhere; `prefilling` the requests whose prompt is here.
    `view` is all that as policies see it, until something changes."""

    role: Role
    capacity: Capacity
    report: LoadReported
    reported_ns: int
    accepting: bool = True
    sent_requests: int = 0
    sent_prefill_tokens: int = 0
    sent_blocks: int = 0
    sent_decodes: int = 0
    sent_context_tokens: int = 0
    expected_decodes: int = 0
    expected_context_tokens: int = 0
    prefilling: set[str] = field(default_factory=set)
    view: WorkerView | None = None
    told: int = 0
    unheard: deque[Sent] = field(default_factory=deque)

    @property
    def decodes_more(self) -> bool:
        """Whether requests may come here to decode."""
        return self.accepting and self.role.decodes


class Fleet:
    """All living workers by id."""

    def __init__(self, capacities: Mapping[str, Capacity]) -> None:
        self._capacities = capacities
        self.workers: dict[str, TrackedWorker] = {}
        self._order: list[str] = []

    def join(self, worker: str, role: Role, now_ns: int) -> None:
        capacity = self._capacities[worker]
        report = LoadReported(worker, 0, 0, 0, 0, capacity.block_count)
        self.workers[worker] = TrackedWorker(role, capacity, report, now_ns)
        self._order = sorted(self.workers)

    def reprice(self, worker: str, capacity: Capacity) -> None:
        """From now on its work costs that."""
        tracked = self.workers.get(worker)
        if tracked is not None:
            tracked.capacity, tracked.view = capacity, None

    def lose(self, worker: str) -> None:
        self.workers.pop(worker, None)
        self._order = sorted(self.workers)

    def report(self, load: LoadReported, now_ns: int) -> None:
        """The worker's own word replaces what was guessed of what it had heard by then; a dead
        worker's is ignored."""
        tracked = self.workers.get(load.worker)
        if tracked is not None:
            if load == tracked.report and not tracked.sent_requests + tracked.sent_decodes:
                return
            tracked.report, tracked.reported_ns, tracked.view = load, now_ns, None
            if load.heard is not None:
                _hear(tracked, load.heard)
                return
            tracked.unheard.clear()
            tracked.sent_requests = tracked.sent_prefill_tokens = tracked.sent_blocks = 0
            tracked.sent_decodes = tracked.sent_context_tokens = 0

    def tell(self, worker: str, events: int) -> None:
        """So many events go out to the worker: with the last of them it knows all that was sent to
        it. Only for workers that report what they have heard."""
        tracked = self.workers.get(worker)
        if tracked is None:
            return
        tracked.told += events
        sent = Sent(
            tracked.told,
            tracked.sent_requests,
            tracked.sent_prefill_tokens,
            tracked.sent_blocks,
            tracked.sent_decodes,
            tracked.sent_context_tokens,
        )
        last = tracked.unheard[-1] if tracked.unheard else None
        seen = (last.requests, last.decodes) if last else (0, 0)
        if seen != (sent.requests, sent.decodes):
            tracked.unheard.append(sent)

    def send(self, worker: str, prefill_tokens: int, known_tokens: int) -> None:
        """A request whose prompt is to be computed here went out."""
        tracked = self.workers[worker]
        tracked.view = None
        tracked.sent_requests += 1
        tracked.sent_prefill_tokens += prefill_tokens
        tracked.sent_blocks += -(-known_tokens // tracked.capacity.block_size)

    def expect_decode(self, worker: str, known_tokens: int) -> None:
        """A request will decode here once its prompt is computed elsewhere."""
        tracked = self.workers[worker]
        tracked.view = None
        tracked.expected_decodes += 1
        tracked.expected_context_tokens += known_tokens

    def decode_arrived(self, worker: str, known_tokens: int) -> None:
        """An expected request decodes here from now on, which its next report will say."""
        self.expect_no_decode(worker, known_tokens)
        tracked = self.workers.get(worker)
        if tracked is not None:
            tracked.sent_decodes += 1
            tracked.sent_context_tokens += known_tokens

    def expect_no_decode(self, worker: str, known_tokens: int) -> None:
        tracked = self.workers.get(worker)
        if tracked is not None:
            tracked.view = None
            tracked.expected_decodes -= 1
            tracked.expected_context_tokens -= known_tokens

    def drain(self, worker: str) -> None:
        """From now on it takes no new requests."""
        tracked = self.workers[worker]
        tracked.accepting, tracked.view = False, None

    def take_role(self, worker: str, role: Role) -> None:
        tracked = self.workers[worker]
        tracked.role, tracked.accepting, tracked.view = role, True, None

    def views(self) -> list[WorkerView]:
        """Every living worker, by id; the same objects as long as nothing changed."""
        return [
            tracked.view or self._look(worker, tracked)
            for worker in self._order
            for tracked in (self.workers[worker],)
        ]

    def accepting(self) -> Iterable[TrackedWorker]:
        return (tracked for tracked in self.workers.values() if tracked.accepting)

    def _look(self, worker: str, tracked: TrackedWorker) -> WorkerView:
        report, capacity = tracked.report, tracked.capacity
        tracked.view = WorkerView(
            worker=worker,
            role=tracked.role,
            cost=capacity.cost,
            as_of_ns=tracked.reported_ns,
            accepting=tracked.accepting,
            running_sequences=report.running_sequences + tracked.sent_decodes,
            waiting_requests=report.waiting_requests + tracked.sent_requests,
            queued_prefill_tokens=report.queued_prefill_tokens + tracked.sent_prefill_tokens,
            context_tokens=report.context_tokens + tracked.sent_context_tokens,
            expected_decodes=tracked.expected_decodes,
            expected_context_tokens=tracked.expected_context_tokens,
            max_sequences=capacity.max_sequences,
            block_size=capacity.block_size,
            total_blocks=capacity.block_count,
            free_blocks=max(0, report.free_blocks - tracked.sent_blocks),
        )
        return tracked.view


def _hear(tracked: TrackedWorker, heard: int) -> None:
    """The worker's report counts in what was sent to it with the first `heard` events."""
    known = None
    while tracked.unheard and tracked.unheard[0].told <= heard:
        known = tracked.unheard.popleft()
    if known is None:
        return
    tracked.sent_requests -= known.requests
    tracked.sent_prefill_tokens -= known.prefill_tokens
    tracked.sent_blocks -= known.blocks
    tracked.sent_decodes -= known.decodes
    tracked.sent_context_tokens -= known.context_tokens
    tracked.unheard = deque(
        Sent(
            later.told,
            later.requests - known.requests,
            later.prefill_tokens - known.prefill_tokens,
            later.blocks - known.blocks,
            later.decodes - known.decodes,
            later.context_tokens - known.context_tokens,
        )
        for later in tracked.unheard
    )
