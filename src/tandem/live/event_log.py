"""The event log of a server for people: who joined, died, was planned; the latest of each kind."""

from collections import deque

from tandem.facts.overview import ClusterEvent

# Of each kind.
MOST_EVENTS = 20


class EventLog:
    """Events by their kinds, none of which pushes those of another one out."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._most = most
        self._kinds: dict[str, deque[tuple[int, str]]] = {}

    def add(self, now_ns: int, kind: str, text: str) -> None:
        self._kinds.setdefault(kind, deque(maxlen=self._most)).append((now_ns, text))

    def events(self, now_ns: int) -> tuple[ClusterEvent, ...]:
        """All of them, newest last."""
        kept = [(at_ns, kind, text) for kind, found in self._kinds.items() for at_ns, text in found]
        return tuple(
            ClusterEvent((now_ns - at_ns) / 1e9, kind, text) for at_ns, kind, text in sorted(kept)
        )
