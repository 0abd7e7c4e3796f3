"""The transfers that are under way on the links of the simulated cluster, and what came of them by
kind."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from tandem.policy.chance import draw
from tandem.report.record import TransferRecord
from tandem.twin.event_queue import EventQueue, Turn
from tandem.twin.network.model import Network

# Called once, with whether the bytes arrived, and how many seconds that took.
Ended = Callable[[bool, float], None]


class BytesUnderWay(Struct, frozen=True):
    """They are counted under `kind`."""

    kind: str
    path: Sequence[str]
    moved_bytes: float
    started_ns: int
    ended: Ended


class Transfers:
    """Owns the network. Every transfer ends once: it arrives, is lost, or is cancelled."""

    def __init__(self, latency_ns: int, timeout_ns: int, queue: EventQueue) -> None:
        self.network = Network({})
        self.under_way: dict[int, BytesUnderWay] = {}
        self._latency_ns = latency_ns
        self._timeout_ns = timeout_ns
        self._queue = queue
        self._last_id = 0
        self._wake_ns: int | None = None
        self._watching = False
        self._totals: dict[str, TransferRecord] = {}
        # The ports that lose a share of what crosses them.
        self._losses: dict[str, float] = {}

    def add_ports(self, ports: Mapping[str, float]) -> None:
        """Ways of a process that may come up, in bytes/s."""
        for port, bytes_per_s in ports.items():
            self.network.add_port(port, bytes_per_s)

    def start(
        self, kind: str, moved_bytes: float, path: Sequence[str], ended: Ended, *, urgent: bool
    ) -> int:
        """Send them through the ports of `path`. What is `urgent` is given up as lost when it
        takes longer than a transfer may. Gives an id for `cancel`."""
        self._last_id += 1
        transfer_id, now_ns = self._last_id, self._queue.now_ns
        self.under_way[transfer_id] = BytesUnderWay(kind, path, moved_bytes, now_ns, ended)
        self.network.start(transfer_id, path, moved_bytes, now_ns, latency_ns=self._latency_ns)
        self.watch()
        if urgent:
            self._queue.at(now_ns + self._timeout_ns, lambda _: self.give_up(transfer_id))
        return transfer_id

    def after_timeout(self, action: Callable[[], object]) -> None:
        """Call it when a transfer that began now would count as lost."""

        def expired(_now_ns: int) -> None:
            action()

        self._queue.at(self._queue.now_ns + self._timeout_ns, expired)

    def cancel(self, transfer_id: int) -> bool:
        """Nobody wants it any more, and its end is not reported. False: it has arrived at this
        very instant, which is still reported, or it is over."""
        cancelled = transfer_id in self.under_way and self.network.cancel(
            transfer_id, self._queue.now_ns
        )
        if cancelled:
            self._total(self.under_way.pop(transfer_id).kind).lost += 1
        self.watch()
        return cancelled

    def give_up(self, transfer_id: int) -> None:
        """If it is still under way, it is lost, which is reported to whoever waits for its end."""
        if transfer_id in self.under_way and self.network.cancel(transfer_id, self._queue.now_ns):
            self._lose(transfer_id)
            self.watch()

    def fail_ports(self, ports: Sequence[str]) -> None:
        """Everything that crosses these ports is lost."""
        for port in ports:
            for transfer_id in self.network.fail_port(port, self._queue.now_ns):
                self._lose(transfer_id)
        self.watch()

    def set_loss(self, ports: Sequence[str], share: float) -> None:
        """Of the transfers that cross these ports this share does not arrive in the end."""
        for port in ports:
            self._losses.pop(port, None)
            if share:
                self._losses[port] = share

    def miss(self, kind: str) -> None:
        """What was to be brought is not there, or not what it should be."""
        self._total(kind).lost += 1

    def records(self) -> list[TransferRecord]:
        return [self._totals[kind] for kind in sorted(self._totals)]

    def watch(self) -> None:
        """Have the queue call when the network has something to report; needed after the links were
        disturbed from outside. Rates change once for all that begins and ends in one turn."""
        if not self._watching:
            self._watching = True
            self._queue.before_next(self._await_next)

    def _await_next(self) -> None:
        self._watching = False
        wake_ns = self.network.next_event_ns()
        if wake_ns != self._wake_ns:
            self._wake_ns = wake_ns
            if wake_ns is not None:
                self._queue.at(max(wake_ns, self._queue.now_ns), self._wake, Turn.TRANSFER)

    def _wake(self, now_ns: int) -> None:
        if now_ns != self._wake_ns:
            return
        self._wake_ns = None
        for transfer_id in self.network.advance(now_ns):
            if self._losses and self._is_lost(transfer_id):
                self._lose(transfer_id)
                continue
            arrived = self.under_way.pop(transfer_id)
            seconds = (now_ns - arrived.started_ns) / 1e9
            total = self._total(arrived.kind)
            total.transfers += 1
            total.moved_bytes += arrived.moved_bytes
            total.seconds += seconds
            arrived.ended(True, seconds)
        self.watch()

    def _is_lost(self, transfer_id: int) -> bool:
        shares = (self._losses.get(port, 0.0) for port in self.under_way[transfer_id].path)
        return draw(0, "lost transfer", transfer_id) < max(shares)

    def _lose(self, transfer_id: int) -> None:
        lost = self.under_way.pop(transfer_id)
        self._total(lost.kind).lost += 1
        lost.ended(False, (self._queue.now_ns - lost.started_ns) / 1e9)

    def _total(self, kind: str) -> TransferRecord:
        total = self._totals.get(kind)
        if total is None:
            total = self._totals[kind] = TransferRecord(kind)
        return total
