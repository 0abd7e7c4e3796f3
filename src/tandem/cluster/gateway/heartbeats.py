"""Heartbeats: which workers and pool processes have been silent for too long. Any message counts as
a sign of life.

A machine that was itself asleep (its process stopped, its host frozen) takes nobody for dead: what
the others sent meanwhile still waits to be read.
"""


class Heartbeats:
    """`silence_ns` without a word, and the peer counts as dead."""

    def __init__(self, silence_ns: int) -> None:
        assert silence_ns > 0
        self.silence_ns = silence_ns
        # By instant, the longest silent first.
        self._heard_ns: dict[str, int] = {}

    def heard(self, peer: str, now_ns: int) -> None:
        """A sign of life, the first or one more."""
        self._heard_ns.pop(peer, None)
        self._heard_ns[peer] = now_ns

    def forget(self, peer: str) -> None:
        self._heard_ns.pop(peer, None)

    def ago_ns(self, peer: str, now_ns: int) -> int:
        """How long a known peer has been silent."""
        return now_ns - self._heard_ns[peer]

    def excuse(self, asleep_ns: int) -> None:
        """Whoever looks has missed so much time itself: it is nobody's silence."""
        for peer in self._heard_ns:
            self._heard_ns[peer] += asleep_ns

    def silent(self, now_ns: int) -> list[str]:
        """Who is to be taken for dead, the longest silent first."""
        found = []
        for peer, heard_ns in self._heard_ns.items():
            if now_ns - heard_ns < self.silence_ns:
                break
            found.append(peer)
        return found

    def next_wakeup(self) -> int | None:
        """When the next one is to be taken for dead if nothing comes."""
        for heard_ns in self._heard_ns.values():
            return heard_ns + self.silence_ns
        return None
