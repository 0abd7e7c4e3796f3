"""Transfers over links with contention: a fluid model.

The rates are those of `links`: even shares, a lower bound of max-min fairness. They change
only when a transfer starts, ends or is disturbed, so time goes from one such instant to the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import fsum

from tandem.twin.network.links import Links, Transfer


class Ends:
    """A heap in which an entry that was replaced stays until it is met or most are such: moving an
    instant costs one push, whatever else is due."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, int]] = []
        self._current: dict[int, int] = {}
        self._serial = 0

    def put(self, key: int, instant_ns: int) -> None:
        """`key` ends then, and no more when it was to end before."""
        self._serial += 1
        self._current[key] = self._serial
        heappush(self._entries, (instant_ns, key, self._serial))
        if len(self._entries) > 4 * len(self._current) + 64:
            self._entries = [entry for entry in self._entries if self._stands(entry)]
            heapify(self._entries)

    def remove(self, key: int) -> None:
        self._current.pop(key, None)

    def next_ns(self) -> int | None:
        entries, current = self._entries, self._current
        while entries:
            instant_ns, key, serial = entries[0]
            if current.get(key) == serial:
                return instant_ns
            heappop(entries)
        return None

    def take(self, instant_ns: int) -> list[int]:
        """Remove and return the keys that end at this instant, the next one; sorted."""
        keys = []
        while self.next_ns() == instant_ns:
            _, key, _ = heappop(self._entries)
            del self._current[key]
            keys.append(key)
        return keys

    def _stands(self, entry: tuple[int, int, int]) -> bool:
        return self._current.get(entry[1]) == entry[2]


@dataclass(slots=True)
class ByteLedger:
    """started = finished + wasted + dropped + all bytes of the transfers under way.

    Of a transfer that was stopped, `wasted_bytes` had moved and `dropped_bytes` had not.
    """

    started_bytes: float = 0.0
    finished_bytes: float = 0.0
    wasted_bytes: float = 0.0
    dropped_bytes: float = 0.0


class Network:
    """`ports` are bytes/s by name, one name a direction.

    Every call names the present instant, which never runs back. Calls at one instant take effect
    together, and how often `advance` is called changes nothing but when arrivals are reported.
    """

    def __init__(self, ports: Mapping[str, float]) -> None:
        self.ledger = ByteLedger()
        self._links = Links()
        self._transfers: dict[int, Transfer] = {}
        # When each transfer's latency is over or, after that, its last byte arrives.
        self._ends = Ends()
        self._arrived: list[tuple[int, int]] = []
        self._now_ns = 0
        for name, bytes_per_s in ports.items():
            self.add_port(name, bytes_per_s)

    def add_port(self, name: str, bytes_per_s: float) -> None:
        """A port that appears later: a planner starts workers. Raises InvalidConfiguration for a
        bandwidth that is not positive."""
        self._links.add_port(name, bytes_per_s)

    def start(
        self,
        transfer_id: int,
        path: Sequence[str],
        moved_bytes: float,
        now_ns: int,
        *,
        latency_ns: int = 0,
    ) -> None:
        """Begin a transfer through the ports of `path`. It takes no bandwidth during its latency;
        alone it arrives after latency + bytes / bandwidth, to the nearest nanosecond."""
        assert transfer_id not in self._transfers
        assert path
        assert len(set(path)) == len(path)
        assert moved_bytes >= 0
        assert latency_ns >= 0
        self._run_until(now_ns)
        total_bytes = float(moved_bytes)
        transfer = Transfer(
            transfer_id, tuple(path), self._links.ports(path), total_bytes, total_bytes, now_ns
        )
        self._transfers[transfer_id] = transfer
        self._links.enter(transfer)
        self.ledger.started_bytes += total_bytes
        if latency_ns:
            self._ends.put(transfer_id, now_ns + latency_ns)
        else:
            self._links.make_ready(transfer)

    def advance(self, now_ns: int) -> list[int]:
        """Transfers that arrived up to now and were not reported yet, by instant, then by id."""
        self._run_until(now_ns)
        arrived = [transfer_id for _, transfer_id in sorted(self._arrived)]
        self._arrived.clear()
        return arrived

    def next_event_ns(self) -> int | None:
        """When to call `advance` next, though it may have nothing to tell then. None: nothing
        moves."""
        return self._now_ns if self._arrived else self._next_change_ns()

    def cancel(self, transfer_id: int, now_ns: int) -> bool:
        """Stop a transfer; what it moved is wasted. False: it arrived before, and `advance` reports
        so or has done so."""
        self._run_until(now_ns)
        transfer = self._transfers.get(transfer_id)
        if transfer is None:
            return False
        remaining_bytes = transfer.remaining_at(now_ns)
        self.ledger.dropped_bytes += remaining_bytes
        self.ledger.wasted_bytes += transfer.total_bytes - remaining_bytes
        self._remove(transfer)
        return True

    def fail_port(self, name: str, now_ns: int) -> list[int]:
        """Stop all transfers that cross the port, as when its worker crashes, and return their ids
        in order. The port is as new afterwards: it serves the worker that restarts."""
        self._run_until(now_ns)
        died = self._links.crossing(name)
        for transfer_id in died:
            self.cancel(transfer_id, now_ns)
        return died

    def set_factor(self, name: str, factor: float, now_ns: int) -> None:
        """The port has this share of its capacity from now on. 0 stalls what crosses it, which
        then takes nothing from its other ports either; 1 is as built."""
        assert 0 <= factor <= 1
        self._run_until(now_ns)
        self._links.set_factor(name, factor)

    def cut(self, cut: str, one: Sequence[str], other: Sequence[str], now_ns: int) -> None:
        """Transfers that cross a port of `one` and a port of `other` stall until `heal(cut)`. A
        transfer under several cuts waits for the last of them."""
        self._run_until(now_ns)
        self._links.cut(cut, one, other)

    def heal(self, cut: str, now_ns: int) -> None:
        """What the cut stalled goes on where it stood."""
        self._run_until(now_ns)
        self._links.heal(cut)

    def rate_bytes_per_s(self, transfer_id: int) -> float:
        """How fast a transfer under way moves from this instant on; 0 during its latency and while
        it is stalled."""
        self._next_change_ns()
        return self._transfers[transfer_id].bytes_per_s

    def moving_bytes(self, now_ns: int) -> float:
        """Bytes that have yet to arrive, stalled ones included. It looks at every transfer: ask
        for a sample, not at every event."""
        self._run_until(now_ns)
        return fsum(transfer.remaining_at(now_ns) for transfer in self._transfers.values())

    def _run_until(self, now_ns: int) -> None:
        assert now_ns >= self._now_ns, "time never runs back"
        while (instant_ns := self._next_change_ns()) is not None and instant_ns <= now_ns:
            self._now_ns = instant_ns
            # All that ends at this instant ends before any rate changes: none of it may be slowed
            # down or sped up by the end of another.
            for transfer_id in self._ends.take(instant_ns):
                transfer = self._transfers[transfer_id]
                if not transfer.ready:
                    self._links.make_ready(transfer)
                    continue
                self.ledger.finished_bytes += transfer.total_bytes
                self._arrived.append((instant_ns, transfer_id))
                self._remove(transfer)
        self._now_ns = now_ns

    def _next_change_ns(self) -> int | None:
        """The end of the next latency or transfer, now that all changes of this instant are in."""
        if not self._links.changed:
            return self._ends.next_ns()
        for transfer, bytes_per_s in self._links.new_rates():
            transfer.move_at(bytes_per_s, self._now_ns)
            end_ns = transfer.end_ns()
            if end_ns is None:
                self._ends.remove(transfer.transfer_id)
            else:
                self._ends.put(transfer.transfer_id, end_ns)
        return self._ends.next_ns()

    def _remove(self, transfer: Transfer) -> None:
        self._ends.remove(transfer.transfer_id)
        self._links.leave(transfer)
        del self._transfers[transfer.transfer_id]
