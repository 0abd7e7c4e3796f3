"""What is under way on the links of the simulated cluster, whose it is, and when it gets there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.report.record import TransferRecord
from tandem.twin.agenda import Agenda, Turn
from tandem.twin.network import Network


class Cargo(Protocol):
    """Whatever waits for the end of a shipment."""

    def arrived(self, now_ns: int) -> None: ...

    def lost(self, now_ns: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Shipment:
    """Bytes under way; `kind` says under what they are counted."""

    kind: str
    moved_bytes: float
    started_ns: int
    cargo: Cargo


class Shipping:
    """Owns the network. Every shipment ends once: it arrives, is lost, or is cancelled."""

    def __init__(self, ports: Mapping[str, float], latency_ns: int, agenda: Agenda) -> None:
        self.network = Network(ports)
        self.under_way: dict[int, Shipment] = {}
        self._latency_ns = latency_ns
        self._agenda = agenda
        self._last_id = 0
        self._wake_ns: int | None = None
        self._totals: dict[str, TransferRecord] = {}

    def ship(self, shipment: Shipment, path: Sequence[str], now_ns: int) -> int:
        """Send it through the ports of `path`. Gives an id for `cancel` and `give_up`."""
        self._last_id += 1
        self.under_way[self._last_id] = shipment
        self.network.start(
            self._last_id, path, shipment.moved_bytes, now_ns, latency_ns=self._latency_ns
        )
        self.watch(now_ns)
        return self._last_id

    def cancel(self, shipment_id: int, now_ns: int) -> None:
        """Nobody wants it any more, and nobody waits to hear of its end."""
        if self.network.cancel(shipment_id, now_ns):
            self._total(self.under_way.pop(shipment_id).kind).lost += 1
        self.watch(now_ns)

    def give_up(self, shipment_id: int, now_ns: int) -> None:
        """If it is still under way, it is lost."""
        if shipment_id in self.under_way and self.network.cancel(shipment_id, now_ns):
            self._lose(shipment_id, now_ns)
            self.watch(now_ns)

    def fail_ports(self, ports: Sequence[str], now_ns: int) -> None:
        """Everything that crosses these ports is lost."""
        for port in ports:
            for shipment_id in self.network.fail_port(port, now_ns):
                self._lose(shipment_id, now_ns)
        self.watch(now_ns)

    def miss(self, kind: str) -> None:
        """What was to be sent is not there to be sent."""
        self._total(kind).lost += 1

    def records(self) -> list[TransferRecord]:
        return [self._totals[kind] for kind in sorted(self._totals)]

    def watch(self, now_ns: int) -> None:
        """Have the agenda call when the network has something to tell; needed after the links were
        disturbed from outside."""
        wake_ns = self.network.next_event_ns()
        if wake_ns != self._wake_ns:
            self._wake_ns = wake_ns
            if wake_ns is not None:
                self._agenda.at(max(wake_ns, now_ns), self._wake, Turn.TRANSFER)

    def _wake(self, now_ns: int) -> None:
        if now_ns != self._wake_ns:
            return
        self._wake_ns = None
        for shipment_id in self.network.advance(now_ns):
            shipment = self.under_way.pop(shipment_id)
            total = self._total(shipment.kind)
            total.transfers += 1
            total.moved_bytes += shipment.moved_bytes
            total.seconds += (now_ns - shipment.started_ns) / 1e9
            shipment.cargo.arrived(now_ns)
        self.watch(now_ns)

    def _lose(self, shipment_id: int, now_ns: int) -> None:
        shipment = self.under_way.pop(shipment_id)
        self._total(shipment.kind).lost += 1
        shipment.cargo.lost(now_ns)

    def _total(self, kind: str) -> TransferRecord:
        return self._totals.setdefault(kind, TransferRecord(kind))
