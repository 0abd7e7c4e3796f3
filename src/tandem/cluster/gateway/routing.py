"""The router machine inside a gateway: translates workers' messages into router events, and router
effects into messages to workers."""

from collections.abc import Iterable, Mapping
from itertools import chain

from tandem.cluster.audit import invariant
from tandem.cluster.gateway.client_output import for_clients
from tandem.cluster.gateway.link_use import LinkUses
from tandem.cluster.gateway.measured_costs import MeasuredCosts
from tandem.cluster.gateway.members import Member, Members, PoolNodes
from tandem.cluster.gateway.transfers import Transfers
from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.router.machine import RouterMachine
from tandem.cluster.router.request_state import RequestState
from tandem.facts.fleet import Tier
from tandem.facts.kv import MoveKv
from tandem.messages.cluster import (
    FetchKv,
    ListBlocks,
    MoveEnded,
    PinBlocks,
    StopMove,
    ToWorker,
)
from tandem.messages.gateway import Deliver, GatewayEffect, SendToWorker
from tandem.messages.router import (
    AnnounceDegraded,
    AskForBlocks,
    BlocksListed,
    BlocksReported,
    CancelTransfer,
    CutOff,
    Explain,
    ImportReported,
    KvReported,
    LeaveOut,
    LoadReported,
    Reject,
    RequestWithdrawn,
    RouterEffect,
    RouterEvent,
    SendEvent,
    StartTransfer,
    TokensReported,
    TransferEnded,
    WorkerLost,
)
from tandem.messages.worker import (
    BlocksPrefetched,
    FailRequest,
    ImportsArrived,
    PrefillsArrived,
    RequestsArrived,
    StepDone,
    WorkerEvent,
)

Effects = list[GatewayEffect]
Arrival = RequestsArrived | PrefillsArrived | ImportsArrived
ARRIVALS = (RequestsArrived, PrefillsArrived, ImportsArrived)
# Reports that do not change whose a token or a block is.
PASSING = (TokensReported, LoadReported, BlocksReported, BlocksListed)

# So many requests go into one event at most, and of those that are taken up again only such as have
# drawn no more than that: it must stay far below what a message may have.
MOST_TOGETHER = 256
RESUMED_TOGETHER_TOKENS = 4096


class Routing:
    """Events gather until `flush`: the router gets all of one instant before it chooses."""

    def __init__(
        self, config: RouterConfig, costs: MeasuredCosts, members: Members, nodes: PoolNodes
    ) -> None:
        self.router = RouterMachine(config)
        self.transfers = Transfers(self.router)
        self.links = LinkUses()
        self._costs = costs
        self.recomputed_tokens = 0
        self._members = members
        self._nodes = nodes
        self._gathered: list[RouterEvent] = []
        # Whether what is gathered may change whose a token or a block is.
        self._decisive = False
        # Whether an answer ends with something that is gathered.
        self._answers_end = False
        self._pausing: list[RequestState] = []

    def gather(self, event: RouterEvent) -> None:
        self._gathered.append(event)
        if not isinstance(event, PASSING):
            self._decisive = True
            self._answers_end = self._answers_end or isinstance(event, RequestWithdrawn)

    def worker_message(self, member: Member, event: RouterEvent, now_ns: int) -> Effects:
        """A worker's report, with what follows for clients and for KV transfers."""
        effects: Effects = []
        match event:
            case TokensReported():
                if self._decisive:
                    effects = self.flush(now_ns)
                drawn = for_clients(event, self.router)
                member.counters.prompts += drawn.prompts
                member.counters.output_tokens += drawn.tokens * event.repeats
                self._answers_end = self._answers_end or drawn.ends
                self.recomputed_tokens += drawn.recomputed_tokens
                # What comes next of the same prompts is to find them done.
                self._decisive = self._decisive or drawn.prompts > 0
                if drawn.emission is not None:
                    effects.append(Deliver(drawn.emission, event.worker, event.repeats))
            case BlocksReported() | BlocksListed():
                roots, block_size = self.router.admission.roots, self.router.config.block_size
                # The contents of the shared pool are reported by its own processes.
                if event.tier is Tier.REMOTE or not member.indexed(roots, block_size):
                    return []
            case KvReported():
                effects = self.flush(now_ns)
                self.transfers.kv_reported(event)
            case ImportReported():
                effects = self.flush(now_ns)
                self.transfers.import_reported(event)
        self.gather(event)
        return effects

    def move_ended(self, member: Member, message: MoveEnded, now_ns: int) -> None:
        """A worker has read what it was to read, or could not."""
        source = self.router.kv_transfers.source_of(message.transfer_id, message.worker)
        report = message.report
        ended = TransferEnded(message.transfer_id, report.arrived, report.tokens)
        if source is None or ended in self._gathered:
            # Nobody waits for it any more, or it was reported twice.
            return
        if source:
            member.counters.read(source, report)
            transfers = self.links.transfer_over(message.transfer_id, now_ns) or 1.0
            changed = self._costs.transfer_measured(source, member.name, report, transfers, now_ns)
            self.reprice(changed)
        else:
            member.counters.fetched(report, report.tokens)
        read_from = self._members.of_name(source)
        if read_from is not None:
            read_from.counters.sent_bytes += report.moved_bytes
            if not report.arrived:
                # Another gateway may have taken the source for dead, and the reader have forgotten
                # it since.
                member.forget(read_from)
        self.gather(ended)

    def adopt_roots(self, newcomer: Member | None, now_ns: int) -> Effects:
        """Somebody has come or gone: prompts are looked up under the root that most workers of the
        model have, for a gateway has no weights. Where that is another one than before, what others
        hold is forgotten, and whoever holds blocks of it lists them; a `newcomer` does so by
        itself."""
        admission, block_size = self.router.admission, self.router.config.block_size
        roots = self._members.common_roots(block_size, admission.roots)
        changed = {model for model, root in roots.items() if admission.roots.get(model) != root}
        if not changed:
            return []
        effects = self.flush(now_ns)
        admission.roots = roots
        for state in self.router.requests.values():
            if state.view.model in changed:
                state.chain = []
        for member in self._members:
            if member.model not in changed:
                continue
            if not member.indexed(roots, block_size):
                admission.index.forget_worker(member.name)
            elif member is not newcomer:
                tiers = (tier for tier in Tier if tier is not Tier.REMOTE)
                effects += (SendToWorker(member.peer, ListBlocks(tier)) for tier in tiers)
        return effects

    def reconfigure(self, config: RouterConfig, now_ns: int) -> Effects:
        """Decide by another configuration, once all that came before it is decided."""
        effects = self.flush(now_ns)
        effects += self._perform(self.router.reconfigure(config, now_ns), now_ns)
        return effects + self.flush(now_ns)

    def reprice(self, capacities: Mapping[str, Capacity]) -> None:
        """What the work of these workers costs has changed."""
        for worker, capacity in capacities.items():
            self.router.admission.fleet.reprice(worker, capacity)

    def fill(self, now_ns: int) -> Effects:
        """Start whoever waits and may go."""
        effects = self.flush(now_ns)
        return effects + self._perform(self.router.fill(now_ns), now_ns) + self.flush(now_ns)

    def audit(self) -> None:
        """Assert that nothing is remembered in vain."""
        self.transfers.audit()
        between_workers = self.router.kv_transfers.between_workers
        invariant(self.links.under_way.keys() == between_workers, "links carry what is awaited")

    def worker_lost(self, worker: str, *, died: bool) -> None:
        """A worker is gone, with all that it held."""
        self.transfers.forget_worker(worker)
        self.gather(WorkerLost(worker, died))

    def pass_time(self, now_ns: int) -> Effects:
        """Have the router look at deadlines, after all that has gathered."""
        effects = self.flush(now_ns)
        asked = self.router.pass_time(now_ns)
        self._keep_answers(effects)
        return effects + self._perform(asked, now_ns)

    def flush(self, now_ns: int) -> Effects:
        """Pass what has gathered to the router."""
        effects: Effects = []
        while self._gathered:
            events, self._gathered, self._decisive = self._gathered, [], False
            self._answers_end = False
            asked = self.router.handle_together(events, now_ns)
            self._keep_answers(effects)
            if asked:
                effects += self._perform(asked, now_ns)
        for worker, late_s in self.router.predictions.take_late():
            if capacity := self._costs.first_token_late(worker, late_s, now_ns):
                self.reprice({worker: capacity})
        return effects

    def take_pausing(self, now_ns: int, effects: Effects) -> list[RequestState]:
        """The requests since the last call whose answer has ended, whatever ended it, and whose
        session may pause."""
        if self._answers_end:
            effects += self.flush(now_ns)
        pausing, self._pausing = self._pausing, []
        return pausing

    def _perform(self, asked: Iterable[RouterEffect], now_ns: int) -> Effects:
        effects: Effects = []
        sent: dict[str, int] = {}
        for effect in _choices_together(asked):
            match effect:
                case SendEvent(worker, event):
                    # Those come from the worker's own process.
                    assert not isinstance(event, StepDone | BlocksPrefetched)
                    sent[worker] = sent.get(worker, 0) + 1
                    self.transfers.event_sent(worker, event)
                    self.send(worker, event, effects)
                case StartTransfer():
                    self._start(effect, effects, now_ns)
                case CancelTransfer(transfer_id, target):
                    self.links.transfer_over(transfer_id, now_ns)
                    self.send(target, StopMove(transfer_id), effects)
                case AskForBlocks(worker, tier):
                    self.send(worker, ListBlocks(tier), effects)
                case _:
                    effects.append(effect)
        for worker, events in sent.items():
            self.router.admission.fleet.events_sent(worker, events)
        return effects

    def _start(self, start: StartTransfer, effects: Effects, now_ns: int) -> None:
        source = self._members.of_name(start.source)
        target = self._members.of_name(start.target)
        order: MoveKv | FetchKv | None = None
        if target is not None and not start.source:
            order = self.transfers.make_fetch(start, target)
        elif target is not None and source is not None and target.reads(source):
            order = self.transfers.make_order(start, source, target)
            if order is not None and (introduction := target.introduction(source)):
                effects.append(SendToWorker(target.peer, introduction))
        if target is not None and order is not None:
            if start.source:
                self.links.transfer_began(start.transfer_id, start.source, start.target, now_ns)
            effects.append(SendToWorker(target.peer, order))
            return
        # There is no place to read from, or it is KV of other weights: it is computed instead.
        self.gather(TransferEnded(start.transfer_id, arrived=False))

    def _keep_answers(self, effects: Effects) -> None:
        """Whoever has worked on an answer that ended, and the shared pool, keep what it leaves."""
        for state in self.router.endings.take_to_keep():
            submission = state.submission
            if submission.pin_ns:
                pin = PinBlocks(tuple(state.chain), submission.pin_ns, state.view.priority)
                self.send_pin((state.prefill, state.decode), pin, effects)
            if submission.pause is not None:
                self._pausing.append(state)

    def send_pin(self, workers: tuple[str, ...], pin: PinBlocks, effects: Effects) -> None:
        """To these workers, and to the shared pool."""
        pooled = [node.name for node in self._nodes]
        for name in dict.fromkeys((*workers, *pooled)):
            self.send(name, pin, effects)

    def send(self, worker: str, message: ToWorker, effects: Effects) -> None:
        """To a worker or a process of the pool by name; to nobody where it is gone."""
        member = self._members.of_name(worker) or self._nodes.of_name(worker)
        if member is not None:
            effects.append(SendToWorker(member.peer, message))


def _choices_together(asked: Iterable[RouterEffect]) -> list[RouterEffect]:
    """What was asked for, in the order that each worker needs. Requests that continue the very same
    prompt and go to one worker are one event: their prompt travels once, and is looked at once."""
    ordered: list[RouterEffect] = []
    gathered: dict[str, list[Arrival]] = {}
    for effect in asked:
        match effect:
            case SendEvent(worker, event):
                before = gathered.get(worker)
                if before and not _go_together(before, event):
                    ordered.append(SendEvent(worker, _as_one(gathered.pop(worker))))
                if isinstance(event, ARRIVALS):
                    gathered.setdefault(worker, []).append(event)
                else:
                    ordered.append(effect)
            case Explain() | Reject() | LeaveOut() | CutOff() | AnnounceDegraded() | FailRequest():
                ordered.append(effect)
            case _:
                ordered += (SendEvent(worker, _as_one(each)) for worker, each in gathered.items())
                gathered = {}
                ordered.append(effect)
    return ordered + [SendEvent(worker, _as_one(each)) for worker, each in gathered.items()]


def _go_together(before: list[Arrival], event: WorkerEvent) -> bool:
    if type(event) is not type(before[0]) or len(before) == MOST_TOGETHER:
        return False
    assert isinstance(event, ARRIVALS)
    return all(
        request.prompt_tokens is before[0].requests[0].prompt_tokens
        and len(request.output_tokens) <= RESUMED_TOGETHER_TOKENS
        for request in event.requests
    )


def _as_one(events: list[Arrival]) -> Arrival:
    if len(events) == 1:
        return events[0]
    requests = tuple(request for event in events for request in event.requests)
    match events[0]:
        case RequestsArrived() as first:
            imports = (each.imports for each in events if isinstance(each, RequestsArrived))
            tokens = tuple(chain.from_iterable(imports))
            return RequestsArrived(requests, tokens if any(tokens) else ())
        case PrefillsArrived() | ImportsArrived() as first:
            import_tokens = (
                tokens
                for event in events
                if not isinstance(event, RequestsArrived)
                for tokens in event.import_tokens
            )
            return type(first)(requests, tuple(import_tokens))
