"""Whether a gateway can serve: both phases have a worker, or had one a moment ago."""

import asyncio

from tandem.cluster.gateway.members import Members
from tandem.live.clock import NS_PER_S, now_ns


class Availability:
    """Whether both phases have a worker that takes requests, or had one a moment ago: workers that
    die are started again, and requests that come meanwhile wait for that. Since when a phase of
    these `members` lacks one is known from the first look that found it so. Used from one loop."""

    def __init__(self, members: Members, comeback_s: float) -> None:
        self._members = members
        self._comeback_ns = round(comeback_s * NS_PER_S)
        self._was_complete = False
        self._lacking_ns: int | None = None
        self._waiters = 0
        self._changed = asyncio.Event()

    @property
    def complete(self) -> bool:
        roles = [member.role for member in self._members if member.accepting]
        return any(role.prefills for role in roles) and any(role.decodes for role in roles)

    def look(self, now_ns: int) -> bool:
        """Whether to take requests: `complete`, or so less than the time for coming back ago."""
        return self._left_ns(now_ns) > 0

    async def comes_back(self) -> bool:
        """Wait until it is complete, for the rest of the time for coming back at most. Whether it
        is."""
        left_ns = self._left_ns(now_ns())
        if left_ns <= 0 or self.complete:
            return left_ns > 0
        self._waiters += 1
        try:
            async with asyncio.timeout(left_ns / NS_PER_S):
                await self._changed.wait()
        except TimeoutError:
            return self.complete
        finally:
            self._waiters -= 1
        return True

    def left_s(self) -> float:
        """What is left of the time for coming back."""
        return self._left_ns(now_ns()) / NS_PER_S

    def members_changed(self) -> None:
        """Perhaps: whoever waits goes on if it is complete now."""
        if self._waiters and self.complete:
            self._changed.set()
            self._changed = asyncio.Event()

    def _left_ns(self, now_ns: int) -> int:
        """The time for coming back that is left."""
        if self.complete:
            self._was_complete, self._lacking_ns = True, None
            return max(1, self._comeback_ns)
        if self._lacking_ns is None:
            self._lacking_ns = now_ns
        return self._lacking_ns + self._comeback_ns - now_ns if self._was_complete else 0
