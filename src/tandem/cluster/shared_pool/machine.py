"""The machine of a shared pool process: offers, reads, tiers, replication, and its gateways.

No sockets, stores or clock: events in, effects out. Gateways have no requests here: they receive
its contents, and nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tandem.cluster.audit import first_broken_law
from tandem.cluster.node.gateways import GatewayConnections
from tandem.cluster.node.peers import PoolNodes
from tandem.cluster.shared_pool.contents import HotBlocks, HotBlocksConfig, Outcome, PoolContents
from tandem.cluster.tiers.config import TiersConfig
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.messages.cluster import (
    Audit,
    Audited,
    Deregister,
    Drain,
    ListBlocks,
    PinBlocks,
    PoolNodeGone,
    PoolNodeJoined,
    PrefixCacheEmptied,
    RegisterAgain,
    Registered,
    RegisterPoolNode,
    RegistrationRefused,
    TiersReported,
    ToGateway,
    ToWorker,
    Undrain,
)
from tandem.messages.node import (
    BlocksFetched,
    BlocksKept,
    ConnectPoolNode,
    ForgetPoolNode,
    GatewayConnected,
    GatewayGone,
    Leave,
    LeaveRequested,
    MessageFromGateway,
    SendToGateway,
)
from tandem.messages.pool_node import (
    BlocksAsked,
    BlocksOffered,
    BlocksReceived,
    PoolNodeEffect,
    PoolNodeEvent,
    ReplicaEnded,
    SendReplica,
)
from tandem.messages.router import BlocksListed, BlocksReported
from tandem.messages.worker import PrefixCacheReset
from tandem.policy.eviction.pins_and_quotas import Pin

Effects = list[PoolNodeEffect]


@dataclass(frozen=True, slots=True)
class PoolNodeConfig:
    """`registration` is how the process registers. HOST of `tiers` is its memory; DISK is whatever
    lies behind that. With `reports_when_asked` its figures are reported only when a simulator calls
    `report`."""

    registration: RegisterPoolNode
    tiers: TiersConfig
    hot_blocks: HotBlocksConfig = field(default_factory=HotBlocksConfig)
    reports_when_asked: bool = False


class PoolNodeMachine:
    """`handle(event, now_ns)` gives the effects to perform, in order; after `Leave` there are
    none."""

    def __init__(self, config: PoolNodeConfig, now_ns: int) -> None:
        self.registration = config.registration
        self._reports_when_asked = config.reports_when_asked
        self.gateways = GatewayConnections()
        self.contents = PoolContents(config.tiers)
        self.siblings = PoolNodes()
        self._hot_blocks = HotBlocks(config.registration.worker, config.hot_blocks)
        self._wakeup_ns: int | None = None
        self._leaving: Leave | None = None
        # No gateway is connected yet: each gets a listing of all this.
        self._first = self.contents.begin(now_ns)[0]

    def next_wakeup(self) -> int | None:
        """When `TimePassed` is due, if nothing happens before."""
        return self._wakeup_ns

    def handle(self, event: PoolNodeEvent, now_ns: int) -> Effects:
        return self.handle_together((event,), now_ns)

    def handle_together(self, events: Sequence[PoolNodeEvent], now_ns: int) -> Effects:
        """Events of one instant, in order."""
        if self._leaving is not None:
            return []
        if self._wakeup_ns is not None and now_ns > self._wakeup_ns:
            self.gateways.slept(now_ns - self._wakeup_ns)
        effects: Effects = [*self._first]
        self._first = []
        for event in events:
            self._take(event, now_ns, effects)
        self._keep_time(now_ns, effects)
        self._wakeup_ns = self.gateways.due_ns(reports=not self._reports_when_asked)
        if self._leaving is not None:
            deregister = Deregister(self.registration.worker)
            self._send_all(deregister, effects)
            effects.append(self._leaving)
            self._wakeup_ns = None
        return effects

    def report(self, now_ns: int) -> Effects:
        """Report the figures of the process to every gateway, due or not."""
        effects: Effects = []
        for gateway, connection in self.gateways.serving():
            connection.reported(now_ns)
            effects.append(SendToGateway(gateway, _report(self)))
        return effects

    def audit(self) -> None:
        """Assert that what was reported is what is held. For tests and for the auditor."""
        self.contents.audit()

    def _take(self, event: PoolNodeEvent, now_ns: int, effects: Effects) -> None:
        match event:
            case BlocksOffered():
                effects.append(self.contents.offered(event))
            case BlocksReceived(names, kept):
                self._change(self.contents.received(names, kept, now_ns), effects)
            case BlocksAsked(fetch_id, names):
                fetch = self.contents.asked(fetch_id, names, now_ns)
                effects.append(fetch)
                self._spread(self._hot_blocks.read(fetch.names, now_ns), effects)
            case BlocksFetched():
                self._change(self.contents.fetched(event), effects)
            case BlocksKept():
                self._change(self.contents.copied(event, now_ns), effects)
            case ReplicaEnded(node):
                self._hot_blocks.ended(node)
            case MessageFromGateway(gateway, message):
                self._receive(gateway, message, now_ns, effects)
            case GatewayConnected(gateway):
                self._siblings_changed(self.siblings.gateway_gone(gateway), effects)
                self.gateways.connect(gateway)
                self._register_at(gateway, now_ns, effects)
            case GatewayGone(gateway):
                self._siblings_changed(self.siblings.gateway_gone(gateway), effects)
                self.gateways.disconnect(gateway)
            case LeaveRequested():
                self._leaving = Leave()

    def _receive(self, gateway: str, message: ToWorker, now_ns: int, effects: Effects) -> None:
        connection = self.gateways.of(gateway)
        if connection is None:
            # Its channel has just broken.
            return
        connection.last_message_ns = now_ns
        match message:
            case Registered():
                connection.terms = message
                connection.reported(now_ns)
                effects.append(SendToGateway(gateway, _listing(self)))
                effects.append(SendToGateway(gateway, _report(self)))
            case RegistrationRefused(reason):
                self._leaving = Leave(reason)
            case RegisterAgain():
                self._forget(gateway, effects)
                self._register_at(gateway, now_ns, effects)
            case PoolNodeJoined(node):
                if node != self.registration.worker:
                    self._siblings_changed(self.siblings.joined(gateway, message), effects)
            case PoolNodeGone(node, incarnation):
                self._siblings_changed(self.siblings.gone(gateway, node, incarnation), effects)
            case PinBlocks(digests, ttl_ns, priority):
                pin = Pin(now_ns + ttl_ns, priority)
                self.contents.hierarchy.caches.pin(digests, pin, now_ns)
            case ListBlocks(tier) if tier is Tier.REMOTE:
                effects.append(SendToGateway(gateway, _listing(self)))
            case Audit():
                effects.append(SendToGateway(gateway, _audited(self)))
            case PrefixCacheReset(external):
                if external:
                    self._change(self.contents.reset(), effects)
                emptied = PrefixCacheEmptied(self.registration.worker)
                effects.append(SendToGateway(gateway, emptied))
            case Drain() if message.leave:
                self._leaving = Leave(again=message.again)
            case Drain():
                self.contents.accepting = False
            case Undrain():
                self.contents.accepting = True

    def _change(self, outcome: Outcome, effects: Effects) -> None:
        on_stores, changes = outcome
        effects += on_stores
        for change in changes:
            self._send_all(BlocksReported(self.registration.worker, Tier.REMOTE, change), effects)

    def _spread(self, hot: Sequence[BlockName], effects: Effects) -> None:
        """These are in demand: bring them into the fastest tier, and to other processes."""
        self._change(self.contents.promoted(hot), effects)
        for node, names in self._hot_blocks.copies(hot, self.siblings.names):
            tiers, found = self.contents.find(names)
            effects.append(SendReplica(node, tiers, found))

    def _siblings_changed(
        self, changes: Iterable[ConnectPoolNode | ForgetPoolNode], effects: Effects
    ) -> None:
        """Other processes of the pool have come or gone."""
        for change in changes:
            effects.append(change)
            if isinstance(change, ForgetPoolNode):
                self._hot_blocks.forget(change.node)

    def _register_at(self, gateway: str, now_ns: int, effects: Effects) -> None:
        connection = self.gateways.of(gateway)
        assert connection is not None
        connection.registered_ns = now_ns
        effects.append(SendToGateway(gateway, self.registration))

    def _forget(self, gateway: str, effects: Effects) -> None:
        connection = self.gateways.of(gateway)
        if connection is not None:
            connection.forget()
        self._siblings_changed(self.siblings.gateway_gone(gateway), effects)

    def _keep_time(self, now_ns: int, effects: Effects) -> None:
        for gateway in self.gateways.silent(now_ns):
            # It may have given this process up as well, and receive from it again some day.
            self._forget(gateway, effects)
            self._register_at(gateway, now_ns, effects)
        for gateway in self.gateways.unanswered(now_ns):
            self._register_at(gateway, now_ns, effects)
        for gateway, connection in self.gateways.reports_due(
            now_ns, asked=self._reports_when_asked
        ):
            connection.reported(now_ns)
            effects.append(SendToGateway(gateway, _report(self)))

    def _send_all(self, message: ToGateway, effects: Effects) -> None:
        effects += (SendToGateway(gateway, message) for gateway, _ in self.gateways.serving())


def _listing(machine: PoolNodeMachine) -> BlocksListed:
    return BlocksListed(
        machine.registration.worker, Tier.REMOTE, *machine.contents.replicas.listing()
    )


def _report(machine: PoolNodeMachine) -> TiersReported:
    return TiersReported(machine.registration.worker, machine.contents.hierarchy.caches.figures())


def _audited(machine: PoolNodeMachine) -> Audited:
    cached = len(machine.contents.replicas.counts)
    problem = first_broken_law(machine.audit)
    return Audited(machine.registration.worker, 0, cached, 0, 0, 0, 0, 0, 0, problem)
