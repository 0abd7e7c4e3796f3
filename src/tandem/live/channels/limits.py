"""How much a channel may hold, and how long it may take."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """For one peer: so many messages and bytes wait to be sent at most, beside `high_water`
    messages each way within the transport. A broken connection is tried again after
    `reconnect_s`, and ever more slowly up to `reconnect_most_s`. A peer whose machine acknowledges
    nothing for `dead_after_s` is cut off. A connection of which nothing at all is heard for
    `unresolved_s` is given up: libzmq does not say that a host's name is unknown."""

    outbox_messages: int = 16384
    outbox_bytes: int = 64 << 20
    high_water: int = 256
    reconnect_s: float = 0.1
    reconnect_most_s: float = 2.0
    dead_after_s: float = 10.0
    handshake_s: float = 10.0
    unresolved_s: float = 3.0


class Outbox:
    """What waits to be sent to one peer, oldest first. A single message always fits."""

    def __init__(self, limits: ChannelLimits) -> None:
        self._limits = limits
        self._waiting: deque[bytes] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> bytes:
        return self._waiting[0]

    def add(self, data: bytes) -> bool:
        """False when it is full: then nothing was added."""
        limits = self._limits
        fits = self._bytes + len(data) <= limits.outbox_bytes
        if self._waiting and (len(self._waiting) >= limits.outbox_messages or not fits):
            return False
        self._waiting.append(data)
        self._bytes += len(data)
        return True

    def sent(self) -> None:
        """The first one is on its way."""
        self._bytes -= len(self._waiting.popleft())

    def clear(self) -> None:
        self._waiting.clear()
        self._bytes = 0
