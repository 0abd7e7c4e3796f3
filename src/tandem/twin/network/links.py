"""Rates of transfers: ports, their shares, slow links and partitions.

A transfer moves at the smallest of its ports' even shares (capacity / transfers that move through
the port). This is a lower bound of max-min fairness: there a transfer has at least the even share
of its bottleneck, and on top of it what others leave unused. It is taken because a start or an end
then concerns only the transfers that share a port with it, however large the network is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tandem.facts.errors import InvalidConfiguration


@dataclass(slots=True, eq=False)
class Port:
    """One direction of a link. `crossing` are all its transfers, `moving` of them move now."""

    bytes_per_s: float
    factor: float = 1.0
    moving: int = 0
    share_bytes_per_s: float = 0.0
    crossing: "dict[int, Transfer]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Transfer:
    """`remaining_bytes` as of `since_ns`; since then it moves at `bytes_per_s`. It is `ready` once
    its latency has passed, and from then on `moving` unless something stalls it."""

    transfer_id: int
    path: tuple[str, ...]
    ports: tuple[Port, ...]
    total_bytes: float
    remaining_bytes: float
    since_ns: int
    bytes_per_s: float = 0.0
    ready: bool = False
    moving: bool = False

    def remaining_at(self, now_ns: int) -> float:
        elapsed_ns = now_ns - self.since_ns
        if not elapsed_ns:  # infinitely fast, for no time: nothing has moved
            return self.remaining_bytes
        return max(0.0, self.remaining_bytes - self.bytes_per_s * elapsed_ns / 1e9)

    def move_at(self, bytes_per_s: float, now_ns: int) -> None:
        self.remaining_bytes = self.remaining_at(now_ns)
        self.since_ns = now_ns
        self.bytes_per_s = bytes_per_s

    def end_ns(self) -> int | None:
        """When the last byte arrives at this rate, to the nearest nanosecond; None: never."""
        if not self.bytes_per_s:
            return None
        return self.since_ns + round(self.remaining_bytes * 1e9 / self.bytes_per_s)


class Links:
    """The ports by name and what crosses them. Changes take effect in `new_rates`, all at once; the
    ports that they concern are in `changed` until then."""

    def __init__(self) -> None:
        self._ports: dict[str, Port] = {}
        self._cuts: dict[str, tuple[tuple[str, ...], frozenset[str], frozenset[str]]] = {}
        self.changed: dict[str, Port] = {}

    def add_port(self, name: str, bytes_per_s: float) -> None:
        if not bytes_per_s > 0:
            raise InvalidConfiguration(
                f"network: the bandwidth of {name} must be greater than 0 bytes/s, "
                f"got {bytes_per_s:g}; leave out links that do not exist"
            )
        assert name not in self._ports
        self._ports[name] = Port(float(bytes_per_s))

    def ports(self, path: Sequence[str]) -> tuple[Port, ...]:
        return tuple(self._ports[name] for name in path)

    def crossing(self, name: str) -> list[int]:
        """Ids of the transfers through a port, sorted."""
        return sorted(self._ports[name].crossing)

    def enter(self, transfer: Transfer) -> None:
        """A transfer is on its way; it shares nothing until it is ready."""
        for port in transfer.ports:
            port.crossing[transfer.transfer_id] = transfer

    def make_ready(self, transfer: Transfer) -> None:
        transfer.ready = True
        self._set_moving(transfer, not self._stalled(transfer))

    def leave(self, transfer: Transfer) -> None:
        self._set_moving(transfer, False)
        for port in transfer.ports:
            del port.crossing[transfer.transfer_id]

    def set_factor(self, name: str, factor: float) -> None:
        port = self._ports[name]
        port.factor = factor
        self.changed[name] = port
        self._stall_or_resume((name,))

    def cut(self, cut: str, one: Sequence[str], other: Sequence[str]) -> None:
        assert cut not in self._cuts
        self._cuts[cut] = (tuple(one), frozenset(one), frozenset(other))
        self._stall_or_resume(one)

    def heal(self, cut: str) -> None:
        one, _, _ = self._cuts.pop(cut)
        self._stall_or_resume(one)

    def new_rates(self) -> Iterator[tuple[Transfer, float]]:
        """Every transfer whose rate has changed since the last call, with the new one. The caller
        applies it before it goes on."""
        for port in self.changed.values():
            if port.moving:
                port.share_bytes_per_s = port.bytes_per_s * port.factor / port.moving
        for port in self.changed.values():
            for transfer in port.crossing.values():
                bytes_per_s = 0.0
                if transfer.moving:
                    bytes_per_s = min([port.share_bytes_per_s for port in transfer.ports])
                if bytes_per_s != transfer.bytes_per_s:
                    yield transfer, bytes_per_s
        self.changed.clear()

    def _stall_or_resume(self, names: Sequence[str]) -> None:
        for name in names:
            # A partition may name workers that start later.
            port = self._ports.get(name)
            for transfer in port.crossing.values() if port else ():
                if transfer.ready:
                    self._set_moving(transfer, not self._stalled(transfer))

    def _stalled(self, transfer: Transfer) -> bool:
        if any(not port.factor for port in transfer.ports):
            return True
        return any(
            not one.isdisjoint(transfer.path) and not other.isdisjoint(transfer.path)
            for _, one, other in self._cuts.values()
        )

    def _set_moving(self, transfer: Transfer, moving: bool) -> None:
        if transfer.moving is moving:
            return
        transfer.moving = moving
        for name, port in zip(transfer.path, transfer.ports, strict=True):
            port.moving += 1 if moving else -1
            self.changed[name] = port
