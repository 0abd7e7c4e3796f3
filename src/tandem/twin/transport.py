"""Moves KV in the simulated cluster: between workers, and between a worker and its slower tiers,
over links with contention."""

from collections.abc import Callable
from dataclasses import dataclass

from tandem.facts.blocks import BlockChanges
from tandem.facts.fleet import Tier
from tandem.facts.fleet_messages import BlocksReported, RouterEvent, StartTransfer, TransferEnded
from tandem.machines.passage import Passage
from tandem.twin.agenda import Agenda, Turn
from tandem.twin.network import Network
from tandem.twin.network_paths import POOL_READ, POOL_WRITE, path_between_tiers, path_to_node
from tandem.twin.record import TransferRecord
from tandem.twin.recorder import Recorder
from tandem.twin.scenario import Pool, Scenario, WorkerKind
from tandem.twin.storage import Hierarchy, Move, TierStore

KV = "kv"


@dataclass(slots=True)
class Shipment:
    """A transfer under way: a request's KV (`order`) or blocks between tiers (`move`)."""

    kind: str
    moved_bytes: float
    started_ns: int
    worker: str
    order: StartTransfer | None = None
    move: Move | None = None


class Transport:
    """Owns the network and the tiers. What arrives or is lost is told to `tell_router`."""

    def __init__(
        self,
        scenario: Scenario,
        agenda: Agenda,
        recorder: Recorder,
        tell_router: Callable[[RouterEvent, int], None],
    ) -> None:
        self._scenario = scenario
        self._agenda = agenda
        self._recorder = recorder
        self._tell_router = tell_router
        self.network = Network(
            {POOL_READ: scenario.pool_bytes_per_s, POOL_WRITE: scenario.pool_bytes_per_s}
        )
        self._kinds: dict[str, WorkerKind] = {}
        self._shipments: dict[int, Shipment] = {}
        self._of_router: dict[int, int] = {}
        self._last_shipment = 0
        self._wake_ns: int | None = None
        self._totals: dict[str, TransferRecord] = {}
        self._sequence_numbers: dict[tuple[str, Tier], int] = {}
        # In a real pool the parent stands in the header of a block.
        self._parents: dict[bytes, bytes] = {}
        self.hierarchies: dict[str, Hierarchy] = {}
        eviction = scenario.policies.eviction
        remote_blocks = scenario.remote_blocks
        self._remote = TierStore(remote_blocks, eviction()) if remote_blocks else None

    def add_worker(self, name: str, pool: Pool) -> None:
        """Wire up a worker that may come up."""
        kind = pool.kind
        self._kinds[name] = kind
        for port, bytes_per_s in kind.links.ports(name).items():
            self.network.add_port(port, bytes_per_s)
        tiers: dict[Tier, TierStore] = {}
        eviction = self._scenario.policies.eviction
        for tier, blocks in ((Tier.HOST, kind.host_blocks), (Tier.DISK, kind.disk_blocks)):
            if blocks:
                tiers[tier] = TierStore(blocks, eviction())
        if self._remote is not None:
            tiers[Tier.REMOTE] = self._remote
        self.hierarchies[name] = Hierarchy(tiers)

    def start(self, order: StartTransfer, passage: Passage | None, now_ns: int) -> None:
        """The router wants KV moved."""
        kind = self._kinds[order.target]
        tokens = order.end_token - order.first_token
        shipment = Shipment(
            KV if order.source else str(order.tier),
            kind.cost.kv_bytes(tokens),
            now_ns,
            order.target,
            order=order,
        )
        if order.source:
            path: tuple[str, ...] = path_to_node(order.source, order.target)
        elif passage is not None and self._read(order, passage, now_ns):
            path = path_between_tiers(order.target, order.tier, Tier.DEVICE)
        else:
            self._agenda.at(
                now_ns,
                lambda at_ns: self._tell_router(TransferEnded(order.transfer_id, False), at_ns),
                Turn.TRANSFER,
            )
            return
        shipment_id = self._ship(shipment, path, now_ns)
        self._of_router[order.transfer_id] = shipment_id
        timeout_ns = round(self._scenario.transfer_timeout_s * 1e9)
        self._agenda.at(now_ns + timeout_ns, lambda at_ns: self._time_out(shipment_id, at_ns))

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        """The router does not want it any more."""
        shipment_id = self._of_router.pop(transfer_id, None)
        if shipment_id is not None and self.network.cancel(shipment_id, now_ns):
            self._total(self._shipments.pop(shipment_id).kind).lost += 1
        self._watch(now_ns)

    def write_through(self, worker: str, changes: BlockChanges, now_ns: int) -> None:
        """Blocks were sealed on a device: copy them to the slower tiers in the background."""
        hierarchy = self.hierarchies[worker]
        if hierarchy.tiers and changes.stored:
            self._parents.update(zip(changes.stored, changes.stored_parents, strict=True))
            for move in hierarchy.write_through(changes.stored):
                self._ship_move(worker, move, now_ns)

    def lose_worker(self, worker: str, now_ns: int) -> None:
        """Everything from and to it dies, and so does its host memory; its disk survives."""
        for port in self._kinds[worker].links.ports(worker):
            for shipment_id in self.network.fail_port(port, now_ns):
                self._lost(self._shipments.pop(shipment_id), now_ns)
        host = self.hierarchies[worker].tiers.get(Tier.HOST)
        if host is not None:
            host.clear()
        for tier in (Tier.HOST, Tier.DISK):
            self._sequence_numbers.pop((worker, tier), None)
        self._watch(now_ns)

    def relist(self, worker: str, now_ns: int) -> None:
        """A worker came back: what its disk still holds is news to the router."""
        disk = self.hierarchies[worker].tiers.get(Tier.DISK)
        if disk is not None and (resident := disk.listing()):
            self._report(worker, Tier.DISK, ((), resident), now_ns)

    def records(self) -> list[TransferRecord]:
        return [self._totals[kind] for kind in sorted(self._totals)]

    def watch(self, now_ns: int) -> None:
        """After the links were disturbed from outside."""
        self._watch(now_ns)

    def _read(self, order: StartTransfer, passage: Passage, now_ns: int) -> bool:
        """Whether the tier still holds what the index promised; reading keeps it from eviction."""
        block_size = self._scenario.block_size
        first, end = order.first_token // block_size, -(-order.end_token // block_size)
        digests = passage.chain[first:end]
        store = self.hierarchies[order.target].tiers.get(order.tier)
        if store is None or not store.up or not all(store.holds(digest) for digest in digests):
            return False
        store.touch(digests, now_ns)
        return True

    def _ship_move(self, worker: str, move: Move, now_ns: int) -> None:
        block_bytes = self._kinds[worker].cost.kv_bytes(self._scenario.block_size)
        moved_bytes = len(move.digests) * block_bytes
        shipment = Shipment(f"to {move.target}", moved_bytes, now_ns, worker, move=move)
        self._ship(shipment, path_between_tiers(worker, move.source, move.target), now_ns)

    def _ship(self, shipment: Shipment, path: tuple[str, ...], now_ns: int) -> int:
        self._last_shipment += 1
        latency_ns = round(self._scenario.network_latency_s * 1e9)
        self.network.start(
            self._last_shipment, path, shipment.moved_bytes, now_ns, latency_ns=latency_ns
        )
        self._shipments[self._last_shipment] = shipment
        self._watch(now_ns)
        return self._last_shipment

    def _watch(self, now_ns: int) -> None:
        """Have the agenda call when the network has something to tell."""
        wake_ns = self.network.next_event_ns()
        if wake_ns is None or wake_ns == self._wake_ns:
            self._wake_ns = wake_ns
            return
        self._wake_ns = wake_ns
        self._agenda.at(max(wake_ns, now_ns), self._wake, Turn.TRANSFER)

    def _wake(self, now_ns: int) -> None:
        if now_ns != self._wake_ns:
            return
        self._wake_ns = None
        for shipment_id in self.network.advance(now_ns):
            self._arrived(self._shipments.pop(shipment_id), now_ns)
        self._watch(now_ns)

    def _arrived(self, shipment: Shipment, now_ns: int) -> None:
        total = self._total(shipment.kind)
        total.transfers += 1
        total.moved_bytes += shipment.moved_bytes
        total.seconds += (now_ns - shipment.started_ns) / 1e9
        if shipment.order is not None:
            order = shipment.order
            self._of_router.pop(order.transfer_id, None)
            tokens = order.end_token - order.first_token
            if order.source:
                self._recorder.moved(order.request_id, tokens)
            else:
                self._recorder.reused(order.request_id, order.tier, tokens)
            self._tell_router(TransferEnded(order.transfer_id, True), now_ns)
        elif shipment.move is not None:
            arrival = self.hierarchies[shipment.worker].arrived(shipment.move, now_ns)
            reporter = "" if shipment.move.target is Tier.REMOTE else shipment.worker
            changes = (arrival.evicted, arrival.added)
            self._report(reporter, shipment.move.target, changes, now_ns)
            for move in arrival.moves:
                self._ship_move(shipment.worker, move, now_ns)

    def _lost(self, shipment: Shipment, now_ns: int) -> None:
        self._total(shipment.kind).lost += 1
        if shipment.order is not None:
            transfer_id = shipment.order.transfer_id
            self._of_router.pop(transfer_id, None)
            self._tell_router(TransferEnded(transfer_id, False), now_ns)
        elif shipment.move is not None:
            self.hierarchies[shipment.worker].lost(shipment.move)

    def _time_out(self, shipment_id: int, now_ns: int) -> None:
        if shipment_id in self._shipments and self.network.cancel(shipment_id, now_ns):
            self._lost(self._shipments.pop(shipment_id), now_ns)
            self._watch(now_ns)

    def _report(
        self,
        worker: str,
        tier: Tier,
        changes: tuple[tuple[bytes, ...], tuple[bytes, ...]],
        now_ns: int,
    ) -> None:
        removed, stored = changes
        if not removed and not stored:
            return
        number = self._sequence_numbers.get((worker, tier), 0)
        self._sequence_numbers[worker, tier] = number + 1
        parents = tuple(self._parents[digest] for digest in stored)
        news = BlockChanges(number, removed, stored, parents)
        self._tell_router(BlocksReported(worker, tier, news), now_ns)

    def _total(self, kind: str) -> TransferRecord:
        return self._totals.setdefault(kind, TransferRecord(kind))
