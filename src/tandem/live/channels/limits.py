"""Bounds of a channel: how much may wait to be sent, how long a peer may take, and how many
malformed messages are logged."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """For one peer: so many messages and bytes wait to be sent at most, beside `high_water`
    messages each way within the transport. What a gateway tells its workers waits without such a
    bound, for room; a worker that takes nothing of it for `unread_s` does not read. A broken
    connection is tried again after `reconnect_s`, and ever more slowly up to `reconnect_most_s`. A
    peer whose machine acknowledges nothing for `dead_after_s` is cut off. A connection of which
    nothing at all is heard for `unresolved_s` is given up: libzmq does not say that a host's name
    is unknown."""

    outbox_messages: int = 16384
    outbox_bytes: int = 64 << 20
    unread_s: float = 10.0
    high_water: int = 256
    reconnect_s: float = 0.1
    reconnect_most_s: float = 2.0
    dead_after_s: float = 10.0
    handshake_s: float = 10.0
    unresolved_s: float = 3.0


class Outbox:
    """What waits to be sent to one peer, oldest first. A single message always fits. `waited_s` is
    counted by the owner, from 0 whenever the peer takes something."""

    def __init__(self, limits: ChannelLimits) -> None:
        self.waited_s = 0.0
        self._limits = limits
        self._waiting: deque[bytes | Callable[[], bytes]] = deque()
        self._bytes = 0
        self._encoded = b""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> bytes:
        first = self._waiting[0]
        if isinstance(first, bytes):
            return first
        # It may be tried many times.
        self._encoded = self._encoded or first()
        return self._encoded

    def add(self, data: bytes) -> bool:
        """False when it is full: then nothing was added."""
        limits = self._limits
        fits = self._bytes + len(data) <= limits.outbox_bytes
        if self._waiting and (len(self._waiting) >= limits.outbox_messages or not fits):
            return False
        self._waiting.append(data)
        self._bytes += len(data)
        return True

    def add_later(self, encode: Callable[[], bytes]) -> None:
        """A message that becomes bytes when its turn comes; it counts to no bound."""
        self._waiting.append(encode)

    def sent(self) -> None:
        """The first one is on its way."""
        first = self._waiting.popleft()
        self._bytes -= len(first) if isinstance(first, bytes) else 0
        self._encoded, self.waited_s = b"", 0.0

    def clear(self) -> None:
        self._waiting.clear()
        self._bytes = 0
        self._encoded = b""


logger = logging.getLogger(__name__)

# A peer may connect under ever new names.
MOST_SENDERS = 1024


class Malformed:
    """`count` messages so far."""

    def __init__(self) -> None:
        self.count = 0
        self._senders: set[str] = set()

    def of(self, sender: str, problem: Exception) -> bool:
        """One more. Whether it is the first of this sender."""
        self.count += 1
        if sender in self._senders or len(self._senders) == MOST_SENDERS:
            return False
        self._senders.add(sender)
        logger.error("a message of %s %s", sender, problem)
        return True
