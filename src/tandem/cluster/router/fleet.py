"""What the router knows of the workers: their roles, their load, and what was sent to them since
they last reported it."""

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
class Standing:
    """One worker. `report` is its last word; the `sent_` figures are what that leaves out, and
    `unheard` how they grew, if the events `told` to the worker are counted. `expected_` count
    requests whose prefill still runs elsewhere; `prefilling` the passages whose prompt is here.
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
        self.standings: dict[str, Standing] = {}
        self._order: list[str] = []

    def join(self, worker: str, role: Role, now_ns: int) -> None:
        capacity = self._capacities[worker]
        report = LoadReported(worker, 0, 0, 0, 0, capacity.block_count)
        self.standings[worker] = Standing(role, capacity, report, now_ns)
        self._order = sorted(self.standings)

    def reprice(self, worker: str, capacity: Capacity) -> None:
        """From now on its work costs that."""
        standing = self.standings.get(worker)
        if standing is not None:
            standing.capacity, standing.view = capacity, None

    def lose(self, worker: str) -> None:
        self.standings.pop(worker, None)
        self._order = sorted(self.standings)

    def report(self, load: LoadReported, now_ns: int) -> None:
        """The worker's own word replaces what was guessed of what it had heard by then; a dead
        worker's is ignored."""
        standing = self.standings.get(load.worker)
        if standing is not None:
            if load == standing.report and not standing.sent_requests + standing.sent_decodes:
                return
            standing.report, standing.reported_ns, standing.view = load, now_ns, None
            if load.heard is not None:
                _hear(standing, load.heard)
                return
            standing.unheard.clear()
            standing.sent_requests = standing.sent_prefill_tokens = standing.sent_blocks = 0
            standing.sent_decodes = standing.sent_context_tokens = 0

    def tell(self, worker: str, events: int) -> None:
        """So many events go out to the worker: with the last of them it knows all that was sent to
        it. Only for workers that report what they have heard."""
        standing = self.standings.get(worker)
        if standing is None:
            return
        standing.told += events
        sent = Sent(
            standing.told,
            standing.sent_requests,
            standing.sent_prefill_tokens,
            standing.sent_blocks,
            standing.sent_decodes,
            standing.sent_context_tokens,
        )
        last = standing.unheard[-1] if standing.unheard else None
        seen = (last.requests, last.decodes) if last else (0, 0)
        if seen != (sent.requests, sent.decodes):
            standing.unheard.append(sent)

    def send(self, worker: str, prefill_tokens: int, known_tokens: int) -> None:
        """A request whose prompt is to be computed here went out."""
        standing = self.standings[worker]
        standing.view = None
        standing.sent_requests += 1
        standing.sent_prefill_tokens += prefill_tokens
        standing.sent_blocks += -(-known_tokens // standing.capacity.block_size)

    def expect(self, worker: str, known_tokens: int) -> None:
        """A request will decode here once its prompt is computed elsewhere."""
        standing = self.standings[worker]
        standing.view = None
        standing.expected_decodes += 1
        standing.expected_context_tokens += known_tokens

    def arrived(self, worker: str, known_tokens: int) -> None:
        """An expected request decodes here from now on, which its next report will say."""
        self.expect_no_more(worker, known_tokens)
        standing = self.standings.get(worker)
        if standing is not None:
            standing.sent_decodes += 1
            standing.sent_context_tokens += known_tokens

    def expect_no_more(self, worker: str, known_tokens: int) -> None:
        standing = self.standings.get(worker)
        if standing is not None:
            standing.view = None
            standing.expected_decodes -= 1
            standing.expected_context_tokens -= known_tokens

    def drain(self, worker: str) -> None:
        """From now on it takes no new requests."""
        standing = self.standings[worker]
        standing.accepting, standing.view = False, None

    def take_role(self, worker: str, role: Role) -> None:
        standing = self.standings[worker]
        standing.role, standing.accepting, standing.view = role, True, None

    def views(self) -> list[WorkerView]:
        """Every living worker, by id; the same objects as long as nothing changed."""
        return [
            standing.view or self._look(worker, standing)
            for worker in self._order
            for standing in (self.standings[worker],)
        ]

    def accepting(self) -> Iterable[Standing]:
        return (standing for standing in self.standings.values() if standing.accepting)

    def _look(self, worker: str, standing: Standing) -> WorkerView:
        report, capacity = standing.report, standing.capacity
        standing.view = WorkerView(
            worker=worker,
            role=standing.role,
            cost=capacity.cost,
            as_of_ns=standing.reported_ns,
            accepting=standing.accepting,
            running_sequences=report.running_sequences + standing.sent_decodes,
            waiting_requests=report.waiting_requests + standing.sent_requests,
            queued_prefill_tokens=report.queued_prefill_tokens + standing.sent_prefill_tokens,
            context_tokens=report.context_tokens + standing.sent_context_tokens,
            expected_decodes=standing.expected_decodes,
            expected_context_tokens=standing.expected_context_tokens,
            max_sequences=capacity.max_sequences,
            block_size=capacity.block_size,
            total_blocks=capacity.block_count,
            free_blocks=max(0, report.free_blocks - standing.sent_blocks),
        )
        return standing.view


def _hear(standing: Standing, heard: int) -> None:
    """The worker's report counts in what was sent to it with the first `heard` events."""
    known = None
    while standing.unheard and standing.unheard[0].told <= heard:
        known = standing.unheard.popleft()
    if known is None:
        return
    standing.sent_requests -= known.requests
    standing.sent_prefill_tokens -= known.prefill_tokens
    standing.sent_blocks -= known.blocks
    standing.sent_decodes -= known.decodes
    standing.sent_context_tokens -= known.context_tokens
    standing.unheard = deque(
        Sent(
            later.told,
            later.requests - known.requests,
            later.prefill_tokens - known.prefill_tokens,
            later.blocks - known.blocks,
            later.decodes - known.decodes,
            later.context_tokens - known.context_tokens,
        )
        for later in standing.unheard
    )
