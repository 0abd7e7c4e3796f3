"""The obvious twin of the network: exact fractions, and every rate computed anew at every event."""

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class SlowTransfer:
    path: tuple[str, ...]
    remaining: Fraction
    ready_ns: int


@dataclass
class SlowNetwork:
    ports: dict[str, float]
    factors: dict[str, float] = field(default_factory=dict)
    cuts: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)
    transfers: dict[int, SlowTransfer] = field(default_factory=dict)
    arrived: list[tuple[int, int]] = field(default_factory=list)
    now_ns: int = 0

    def moving(self) -> list[SlowTransfer]:
        def cut(path, one, other):
            return any(port in one for port in path) and any(port in other for port in path)

        return [
            transfer
            for transfer in self.transfers.values()
            if transfer.ready_ns <= self.now_ns
            and all(self.factors.get(port, 1) > 0 for port in transfer.path)
            and not any(cut(transfer.path, *sides) for sides in self.cuts.values())
        ]

    def rate(self, transfer: SlowTransfer) -> Fraction:
        """Bytes a nanosecond: the smallest even share, if it moves."""
        moving = self.moving()
        if transfer not in moving:
            return Fraction(0)
        return min(
            Fraction(self.ports[port])
            * Fraction(self.factors.get(port, 1.0))
            / sum(port in other.path for other in moving)
            / 10**9
            for port in transfer.path
        )

    def event_ns(self, transfer: SlowTransfer) -> int | None:
        if transfer.ready_ns > self.now_ns:
            return transfer.ready_ns
        rate = self.rate(transfer)
        return self.now_ns + round(transfer.remaining / rate) if rate else None

    def flow(self, now_ns: int) -> None:
        rates = {number: self.rate(transfer) for number, transfer in self.transfers.items()}
        for number, transfer in self.transfers.items():
            transfer.remaining -= rates[number] * (now_ns - self.now_ns)
        self.now_ns = now_ns

    def run_until(self, now_ns: int) -> None:
        while True:
            events = {
                number: self.event_ns(transfer) for number, transfer in self.transfers.items()
            }
            instant_ns = min((at for at in events.values() if at is not None), default=now_ns + 1)
            ending = [
                number
                for number, transfer in self.transfers.items()
                if events[number] == instant_ns and transfer.ready_ns <= self.now_ns
            ]
            if instant_ns > now_ns:
                return self.flow(now_ns)
            self.flow(instant_ns)
            for number in ending:
                del self.transfers[number]
                self.arrived.append((instant_ns, number))


def max_min_rates(ports: dict[str, float], paths: dict[int, tuple[str, ...]]) -> dict[int, float]:
    """Progressive filling: the tightest port is filled, its transfers are done, and so on."""
    room = dict(ports)
    waiting = dict(paths)
    rates = {}
    while waiting:
        users = {
            port: [number for number, path in waiting.items() if port in path] for port in room
        }
        tight = min((port for port in room if users[port]), key=lambda p: room[p] / len(users[p]))
        share = room[tight] / len(users[tight])
        for number in users[tight]:
            rates[number] = share
            for port in waiting.pop(number):
                room[port] -= share
    return rates
