"""Brings the KV that the router wants moved, between workers and from their slower tiers, over
links with contention."""

from dataclasses import dataclass

from tandem.cluster.router.request_state import RequestState
from tandem.facts.fleet import Tier
from tandem.messages.router import StartTransfer, TransferEnded
from tandem.twin.agenda import Agenda, Turn
from tandem.twin.network_paths import POOL_READ, POOL_WRITE, path_between_tiers, path_to_node
from tandem.twin.recorder import Recorder
from tandem.twin.scenario import Pool, Scenario
from tandem.twin.shipping import Shipment, Shipping
from tandem.twin.tiers import TellRouter, Tiers

KV = "kv"


class Transport:
    """Performs the router's transfers; `tell_router` hears of their ends. Owns the links
    (`shipping`) and what lies in the slower `tiers`."""

    def __init__(
        self, scenario: Scenario, agenda: Agenda, recorder: Recorder, tell_router: TellRouter
    ) -> None:
        self._agenda = agenda
        self.recorder = recorder
        self.tell_router = tell_router
        self.shipping = Shipping(
            {POOL_READ: scenario.pool_bytes_per_s, POOL_WRITE: scenario.pool_bytes_per_s},
            round(scenario.network_latency_s * 1e9),
            agenda,
        )
        self.tiers = Tiers(scenario, self.shipping, tell_router)
        self._timeout_ns = round(scenario.transfer_timeout_s * 1e9)
        self._pools: dict[str, Pool] = {}
        # Shipments by the router's transfers.
        self.under_way: dict[int, int] = {}

    def add_worker(self, name: str, pool: Pool) -> None:
        """Wire up a worker that may come up."""
        self._pools[name] = pool
        for port, bytes_per_s in pool.kind.links.ports(name).items():
            self.shipping.network.add_port(port, bytes_per_s)
        self.tiers.add_worker(name, pool)

    def start(self, order: StartTransfer, state: RequestState | None, now_ns: int) -> None:
        """The router wants KV moved."""
        cargo = OrderedKv(self, order)
        if order.source:
            path: tuple[str, ...] = path_to_node(order.source, order.target)
        elif state is not None and (digests := self.tiers.read(order, state, now_ns)):
            cargo = OrderedKv(self, order, digests)
            path = path_between_tiers(order.target, order.tier, Tier.DEVICE)
        else:
            self.shipping.miss(str(order.tier))
            self._agenda.at(now_ns, cargo.lost, Turn.TRANSFER)
            return
        kv_bytes = self._pools[order.target].kind.cost.kv_bytes(order.end_token - order.first_token)
        kind = KV if order.source else str(order.tier)
        shipment_id = self.shipping.ship(Shipment(kind, kv_bytes, now_ns, cargo), path, now_ns)
        self.under_way[order.transfer_id] = shipment_id
        self._agenda.at(
            now_ns + self._timeout_ns, lambda at_ns: self.shipping.give_up(shipment_id, at_ns)
        )

    def cancel(self, transfer_id: int, now_ns: int) -> None:
        """The router does not want it any more."""
        shipment_id = self.under_way.pop(transfer_id, None)
        if shipment_id is not None:
            self.shipping.cancel(shipment_id, now_ns)

    def lose_worker(self, worker: str, now_ns: int) -> None:
        """Everything from and to it dies, and so does its host memory."""
        self.shipping.fail_ports(tuple(self._pools[worker].kind.links.ports(worker)), now_ns)
        self.tiers.lose_worker(worker)


@dataclass(frozen=True, slots=True)
class OrderedKv:
    """KV on its way to a worker that waits for it; `digests` are its blocks, if from a tier."""

    transport: Transport
    order: StartTransfer
    digests: tuple[bytes, ...] = ()

    def arrived(self, now_ns: int) -> None:
        order, recorder = self.order, self.transport.recorder
        damage = self.transport.tiers.damage
        if not order.source and not damage.sound(order.target, order.tier, self.digests, now_ns):
            self.transport.shipping.miss(str(order.tier))
            self._end(False, now_ns)
            return
        tokens = order.end_token - order.first_token
        if order.source:
            recorder.moved(order.request_id, tokens)
        else:
            recorder.reused(order.request_id, order.tier, tokens)
        self._end(True, now_ns)

    def lost(self, now_ns: int) -> None:
        self._end(False, now_ns)

    def _end(self, arrived: bool, now_ns: int) -> None:
        self.transport.under_way.pop(self.order.transfer_id, None)
        self.transport.tell_router(TransferEnded(self.order.transfer_id, arrived), now_ns)
