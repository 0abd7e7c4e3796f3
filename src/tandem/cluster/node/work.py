"""The requests of a worker's gateways: leases, the worker machine, and inbound KV transfers
together."""

from tandem.cluster.audit import invariant
from tandem.cluster.node.gateways import GatewayConnections
from tandem.cluster.node.inbound_transfers import InboundTransfers, Order
from tandem.cluster.node.outbox import Outbox
from tandem.cluster.node.tiers import TierEvent, WorkerTiers
from tandem.cluster.worker.machine import WorkerMachine
from tandem.messages.node import MoveFinished, NodeEffect
from tandem.messages.worker import (
    BlocksCommitted,
    CancelImport,
    CopiesRequested,
    EmitTokens,
    FailRequest,
    ImportBlocks,
    ImportDone,
    ImportsArrived,
    KvComputed,
    KvTransfersRequested,
    PrefillsArrived,
    PrefixCacheReset,
    Refuse,
    ReportBlocks,
    RequestsAborted,
    RequestsArrived,
    RunStep,
    SessionPaused,
    SessionReturning,
    TransferPinsReleased,
    WorkerEvent,
)

Arrival = RequestsArrived | PrefillsArrived | ImportsArrived
Change = (
    ImportDone | CopiesRequested | KvTransfersRequested | TransferPinsReleased | RequestsAborted
)
Effects = list[NodeEffect]
# What nearly all steps have. It leaves the requests as they are.
OF_STEPS = frozenset({RunStep, EmitTokens, BlocksCommitted, ReportBlocks})


class Work:
    """Passes events to `machine`, and to the slower `tiers` where there are any. Arrivals of one
    instant wait for `flush` (or for any other event), so that they are planned together."""

    def __init__(
        self,
        worker: str,
        machine: WorkerMachine,
        gateways: GatewayConnections,
        tiers: WorkerTiers | None = None,
    ) -> None:
        self.worker = worker
        self.machine = machine
        self.tiers = tiers
        self.outbox = Outbox(worker, machine.config.block_size, gateways)
        self.leases = self.outbox.leases
        self.inbound = InboundTransfers(worker, machine, tiers)
        self._arrived: Arrival | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do for anybody."""
        return self.machine.idle and self._arrived is None

    def requests_arrived(self, gateway: str, arrival: Arrival, end_ns: int, now_ns: int) -> Effects:
        """Requests of this gateway; their leases end at `end_ns` unless renewed."""
        for request in arrival.requests:
            self.leases.grant(request.request_id, gateway, end_ns)
        together = None if self._arrived is None else _together(self._arrived, arrival)
        if together is not None:
            self._arrived = together
            return []
        effects = self.flush(now_ns)
        self._arrived = arrival
        return effects

    def flush(self, now_ns: int) -> Effects:
        """Pass what has arrived to the worker machine."""
        arrived, self._arrived = self._arrived, None
        return [] if arrived is None else self._handle(arrived, now_ns)

    def pass_to_machine(self, event: WorkerEvent, now_ns: int) -> Effects:
        """Pass this event to the worker machine, after everything that came before."""
        return self.flush(now_ns) + self._handle(event, now_ns)

    def change(self, gateway: str, event: Change, now_ns: int) -> Effects:
        """A gateway's event about requests, of which only its own count."""
        if isinstance(event, ImportDone):
            mine = self.leases.owner(event.request_id) == gateway
            return self.inbound.conclude_import(event) + self._end_quiet(now_ns) if mine else []
        request_ids = tuple(
            request_id
            for request_id in event.request_ids
            if self.leases.owner(request_id) == gateway
        )
        if not request_ids:
            return []
        effects = self.pass_to_machine(type(event)(request_ids), now_ns)
        if isinstance(event, TransferPinsReleased):
            # The KV of one that goes on is reported from the start to the next reader.
            for request_id in request_ids:
                self.outbox.block_exports.drop(request_id)
        self._settle(request_ids)
        return effects

    def session_event(self, event: SessionPaused | SessionReturning, now_ns: int) -> Effects:
        """A session pauses, or is expected back; without slower tiers its KV stays where it is."""
        if self.tiers is None:
            return []
        if isinstance(event, SessionReturning):
            return self.pass_to_machine(event, now_ns)
        effects = self.flush(now_ns)
        self.tiers.session_paused(event, now_ns)
        return effects + self._end_quiet(now_ns)

    def reset_prefix_cache(self, event: PrefixCacheReset, now_ns: int) -> Effects:
        """Forget what is cached on the device, and in slower tiers if that is wanted."""
        effects = self.pass_to_machine(event, now_ns)
        if event.external and self.tiers is not None:
            effects += self.tiers.reset()
        return effects + self._end_quiet(now_ns)

    def order_transfer(self, gateway: str, order: Order, problem: str, now_ns: int) -> Effects:
        """Bring KV to a request of this gateway, unless there is a `problem`."""
        if self.leases.owner(order.request_id) != gateway:
            problem = f"{order.request_id} is no request of {gateway} here"
        effects = self.inbound.accept_order(gateway, order, problem, now_ns)
        return effects + self._end_quiet(now_ns)

    def stop_move(self, gateway: str, transfer_id: int, now_ns: int) -> Effects:
        """Nobody waits for this move any more."""
        return self.inbound.stop_transfer(gateway, transfer_id) + self._end_quiet(now_ns)

    def transfer_event(self, event: MoveFinished | TierEvent, now_ns: int) -> Effects:
        """A move, or something that the slower tiers asked for, is done."""
        return self.inbound.transfer_event(event, now_ns) + self._end_quiet(now_ns)

    def give_up_requests(self, request_ids: tuple[str, ...], now_ns: int) -> Effects:
        """Nobody wants these any more: they end here, and what they hold is freed as soon as nobody
        writes to it."""
        effects = self.pass_to_machine(RequestsAborted(request_ids), now_ns)
        effects += self.pass_to_machine(TransferPinsReleased(request_ids), now_ns)
        self._settle(request_ids)
        return effects

    def forget(self, gateway: str, now_ns: int) -> Effects:
        """Everything of this gateway is void; its moves are stopped and not reported."""
        effects = self.inbound.disown(gateway)
        request_ids = self.leases.of(gateway)
        if request_ids:
            effects += self.give_up_requests(request_ids, now_ns)
        return effects + self._end_quiet(now_ns)

    def audit(self) -> None:
        """Assert that every request has an owner, and every import its books."""
        invariant(self._arrived is None, "requests that arrived have been put to the worker")
        self.machine.audit()
        held = self.machine.sequences.pinned.keys()
        leased, importing = self.leases.request_ids, self.machine.sequences.importing.keys()
        invariant(leased == self.machine.unfinished.keys() | held, "every request has a lease")
        exported = self.outbox.block_exports.request_ids
        invariant(exported <= leased, "blocks are exported for requests with a lease")
        imports = self.inbound.request_ids
        invariant(imports <= importing, "KV is imported for sequences that wait for it")
        self.inbound.audit()

    def _handle(self, event: WorkerEvent, now_ns: int) -> Effects:
        landed = self.machine.handle(event, now_ns)
        effects = self.outbox.address(landed)
        if self.tiers is not None:
            effects += self.tiers.event_handled(event, landed, now_ns)
        for effect in landed:
            if type(effect) in OF_STEPS:
                continue
            match effect:
                case ImportBlocks():
                    self.inbound.blocks_reserved(effect)
                case CancelImport(request_id):
                    # Only this process writes to the blocks: it need not ask anybody to stop.
                    effects += self.inbound.conclude_import(ImportDone(request_id, 0))
                case Refuse(request_id) | FailRequest(request_id):
                    self._settle((request_id,))
                case KvComputed(request_ids, (0,)):
                    # Lost: it has ended here, unless it was only copied.
                    self._settle(request_ids)
        return effects + self._end_quiet(now_ns)

    def _end_quiet(self, now_ns: int) -> Effects:
        """Pass on the imports that have ended and whose blocks are quiet, and the prefetches that
        have ended."""
        effects: Effects = []
        for outcome in self.inbound.take_quiet():
            effects += self.pass_to_machine(outcome, now_ns)
        if self.tiers is not None:
            for prefetched in self.tiers.take_prefetched():
                effects += self.pass_to_machine(prefetched, now_ns)
            for paused in self.tiers.take_pauses(now_ns):
                effects += self.pass_to_machine(paused, now_ns)
        return effects

    def _settle(self, request_ids: tuple[str, ...]) -> None:
        """Those of these that hold nothing any more have no lease either."""
        alive, held = self.machine.unfinished, self.machine.sequences.pinned
        self.outbox.end(each for each in request_ids if each not in alive and each not in held)


def _together(earlier: Arrival, later: Arrival) -> Arrival | None:
    """Both as one event, where they are of one kind."""
    match earlier, later:
        case RequestsArrived(), RequestsArrived():
            return RequestsArrived(
                earlier.requests + later.requests, earlier.imports + later.imports
            )
        case PrefillsArrived(), PrefillsArrived():
            return PrefillsArrived(
                earlier.requests + later.requests, earlier.import_tokens + later.import_tokens
            )
        case _:
            return None
