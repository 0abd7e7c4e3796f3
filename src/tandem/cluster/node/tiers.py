"""The tiers of one worker: write-through, fetches, prefetch, the benefit gate, and the reports to
its gateways.

Deals in sequences, names and instants, not in the owners of requests.
"""

from collections.abc import Iterable, Iterator
from itertools import count

from tandem.cluster.audit import invariant
from tandem.cluster.node.fetches import (
    Ended,
    Fetches,
    Prefetch,
    Wanted,
    is_prefetch,
    prefetch_of,
)
from tandem.cluster.node.gateways import GatewayConnections
from tandem.cluster.node.peers import PoolNodes
from tandem.cluster.tiers.benefit_gate import BenefitGate, StepClock
from tandem.cluster.tiers.config import TiersConfig
from tandem.cluster.tiers.hierarchy import TierHierarchy
from tandem.cluster.tiers.tier_caches import TierChanged, tier_figures
from tandem.cluster.tiers.write_through import SharedContent, WriteThrough
from tandem.cluster.worker.machine import WorkerMachine
from tandem.facts.fleet import Tier
from tandem.messages.cluster import (
    PinBlocks,
    PoolNodeGone,
    PoolNodeJoined,
    TiersReported,
)
from tandem.messages.node import (
    BlocksFetched,
    BlocksKept,
    BlocksStaged,
    ConnectPoolNode,
    EndFetch,
    ForgetPoolNode,
    NodeEffect,
    SendToGateway,
)
from tandem.messages.router import BlocksListed, BlocksReported
from tandem.messages.worker import (
    BlocksCommitted,
    BlocksPrefetched,
    ImportsArrived,
    PrefetchBlocks,
    PrefillsArrived,
    RequestsArrived,
    RunStep,
    SessionPaused,
    StepDone,
    WorkerEffect,
    WorkerEvent,
)
from tandem.policy.eviction.pins_and_quotas import Pin

Effects = list[NodeEffect]
TierEvent = BlocksStaged | BlocksKept | BlocksFetched
TierMessage = PoolNodeJoined | PoolNodeGone | PinBlocks


class WorkerTiers:
    """Effects are to be performed in order. Fetches that are over are given by `take_ended`, after
    whatever may have ended some."""

    def __init__(
        self,
        config: TiersConfig,
        machine: WorkerMachine,
        gateways: GatewayConnections,
        *,
        worker: str,
    ) -> None:
        copy_ids: Iterator[int] = count()
        self.hierarchy = TierHierarchy(config, copy_ids)
        self.shared = SharedContent()
        self.benefit = BenefitGate((*self.hierarchy.caches.by_tier, Tier.REMOTE), config.limits)
        self.clock = StepClock(self.benefit)
        self.fetches = Fetches(machine.config.block_size, self.hierarchy, self.shared)
        self.writing = WriteThrough(
            self.hierarchy, self.shared, machine.sequences.pool.versions, copy_ids
        )
        self.prefetch = Prefetch(self.hierarchy, self.shared, machine)
        self.pool_nodes = PoolNodes()
        self._worker = worker
        self._remote = config.remote
        self._connections = gateways
        self._ended: list[Ended] = []
        self._prefetched: list[BlocksPrefetched] = []
        # Pauses that wait for so many blocks to be copied: when the session is expected back.
        self._pauses: dict[bytes, tuple[int, int]] = {}
        self.begun = False

    def report_contents(self, now_ns: int) -> Effects:
        """Before everything else, and once."""
        self.begun = True
        return self._addressed(self.hierarchy.begin(now_ns))

    def event_handled(
        self, event: WorkerEvent, landed: Iterable[WorkerEffect], now_ns: int
    ) -> Effects:
        """The worker machine has handled an event, with these effects."""
        if isinstance(event, StepDone):
            self.clock.landed(now_ns)
        elif self._pauses and isinstance(event, RequestsArrived | ImportsArrived | PrefillsArrived):
            for request in event.requests:
                self._pauses.pop(request.session, None)
        effects: Effects = []
        for effect in landed:
            if isinstance(effect, RunStep):
                self.clock.launched(effect.plan, now_ns)
            elif isinstance(effect, BlocksCommitted):
                effects += self._addressed(
                    self.writing.blocks_committed(effect, self.benefit, now_ns)
                )
            elif isinstance(effect, PrefetchBlocks):
                # The gateway has seen them somewhere.
                fetch_id = prefetch_of(effect.prefetch_id)
                wanted = Wanted(fetch_id, effect.names, effect.blocks, Tier.REMOTE)
                effects += self.fetch(wanted, now_ns)
        if isinstance(event, RequestsArrived | ImportsArrived | PrefillsArrived):
            effects += self._addressed(self.prefetch.requests_queued(event))
        return effects

    def tier_event(self, event: TierEvent, now_ns: int) -> Effects:
        """An effect of the tiers is done."""
        match event:
            case BlocksStaged():
                return self._addressed(self.writing.staged(event, now_ns))
            case BlocksFetched():
                effects, ended = self.fetches.fetch_ended(event, self.benefit, now_ns)
                self._end(ended)
                return self._addressed(effects)
            case _:
                return self._kept(event, now_ns)

    def fetch(self, wanted: Wanted, now_ns: int) -> Effects:
        """Read these into reserved blocks."""
        effects, ended = self.fetches.start_fetch(wanted, now_ns)
        if ended is not None:
            self._end(ended)
        return self._addressed(effects)

    def end_fetch(self, fetch_id: int) -> Effects:
        """It is not wanted any more; its end still comes."""
        ended = self.fetches.stop_fetch(fetch_id)
        if ended is None:
            return [EndFetch(fetch_id)]
        self._ended.append(ended)
        return []

    def take_ended(self) -> list[Ended]:
        """The fetches for requests that are over, since the last call: nobody writes for them any
        more."""
        ended, self._ended = self._ended, []
        return ended

    def take_prefetched(self) -> list[BlocksPrefetched]:
        """The prefetches that are over, since the last call."""
        prefetched, self._prefetched = self._prefetched, []
        return prefetched

    def session_paused(self, event: SessionPaused, now_ns: int) -> None:
        """A pause waits until what its session has left is copied: a chain with a block missing is
        worth nothing behind it."""
        return_ns = now_ns + event.return_in_ns
        self._pauses[event.session] = self.writing.committed_blocks, return_ns

    def take_pauses(self, now_ns: int) -> list[SessionPaused]:
        """The pauses of sessions whose blocks may be overwritten now."""
        if not self._pauses:
            return []
        copied_blocks = self.writing.copied_blocks
        ready = [each for each, (blocks, _) in self._pauses.items() if blocks <= copied_blocks]
        return [
            SessionPaused(session, max(0, self._pauses.pop(session)[1] - now_ns))
            for session in ready
        ]

    def gateway_message(self, gateway: str, message: TierMessage, now_ns: int) -> Effects:
        """A gateway's message about the shared pool, or a pin."""
        match message:
            case PinBlocks(digests, ttl_ns, priority):
                self.hierarchy.caches.pin(digests, Pin(now_ns + ttl_ns, priority), now_ns)
                return []
            case PoolNodeJoined():
                return self._pool_changed(self.pool_nodes.joined(gateway, message))
            case PoolNodeGone(node, incarnation):
                return self._pool_changed(self.pool_nodes.gone(gateway, node, incarnation))

    def reset(self) -> Effects:
        """Hold nothing any more, and write nothing of what was committed so far."""
        self.writing.reset()
        self.shared.lose_all()
        return self._addressed(self.hierarchy.caches.reset())

    def gateway_gone(self, gateway: str) -> Effects:
        """This gateway reports no process of the pool any more."""
        return self._pool_changed(self.pool_nodes.gateway_gone(gateway))

    def listing(self, tier: Tier) -> BlocksListed | None:
        """All that one tier holds; None for tiers that this worker has not."""
        cache = self.hierarchy.caches.by_tier.get(tier)
        return None if cache is None else BlocksListed(self._worker, tier, *cache.listing())

    def figures(self, now_ns: int) -> TiersReported:
        """The figures of all tiers."""
        figures = list(self.hierarchy.caches.figures())
        if self._remote:
            counts, there = self.fetches.pool_counts, self.shared.there
            reason = "" if there else "no process of the pool is there"
            figures.append(tier_figures(Tier.REMOTE, counts, on=there, reason=reason))
        judged = tuple(self.benefit.judged(each, now_ns) for each in figures)
        return TiersReported(self._worker, judged)

    def audit(self) -> None:
        """Assert that nothing is under way that nobody waits for."""
        self.hierarchy.audit()
        self.writing.audit()
        self.fetches.audit()
        taken = not self._ended and not self._prefetched
        invariant(taken, "fetches that are over have been taken")

    def _end(self, ended: Ended) -> None:
        if not is_prefetch(ended.fetch_id):
            self._ended.append(ended)
            return
        blocks = ended.report.tokens // self.fetches.block_size
        self._prefetched.append(BlocksPrefetched(prefetch_of(ended.fetch_id), blocks))

    def _kept(self, event: BlocksKept, now_ns: int) -> Effects:
        between = self.hierarchy.owns_copy(event.copy_id)
        tier = self.hierarchy.slower_tier(event.copy_id) if between else event.tier
        if event.problem:
            self.benefit.failed(tier, event.problem, now_ns)
            if not between or tier is Tier.REMOTE:
                # The hierarchy counts for its own tiers what it ordered itself.
                self.fetches.counts_of(tier).failures += 1
        elif event.kept:
            self.benefit.worked(tier)
        if not between:
            return self._addressed(self.writing.kept(event, now_ns))
        effects = self._addressed(self.hierarchy.copied(event, now_ns))
        begun, ended = self.fetches.go_on(now_ns)
        for each in ended:
            self._end(each)
        return effects + self._addressed([*begun, *self.prefetch.go_on()])

    def _pool_changed(self, changes: Iterable[ConnectPoolNode | ForgetPoolNode]) -> Effects:
        """Gateways tell every worker, also one whose blocks the pool does not keep."""
        if not self._remote:
            return []
        effects: Effects = list(changes)
        if any(isinstance(each, ForgetPoolNode) for each in effects):
            self.shared.lose_all()
        self.shared.there = len(self.pool_nodes) > 0
        return effects

    def _addressed(self, effects: Iterable[NodeEffect | TierChanged]) -> Effects:
        """Changes of contents go to all gateways."""
        found: Effects = []
        for effect in effects:
            if isinstance(effect, TierChanged):
                message = BlocksReported(self._worker, effect.tier, effect.changes)
                found += (
                    SendToGateway(gateway, message) for gateway, _ in self._connections.serving()
                )
            else:
                found.append(effect)
        return found
