"""When does what ends next end? At most one instant a key, moved and removed at will."""

from heapq import heapify, heappop, heappush


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
