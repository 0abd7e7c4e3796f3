"""Whether both phases have a worker that takes requests, or had a moment ago: those that die are
started again."""

from tandem.live.clock import NS_PER_S
from tandem.machines.gateway.members import Members


class Presence:
    """Of these `members`. Since when a phase lacks one is known from the first look that found it
    so."""

    def __init__(self, members: Members, comeback_s: float) -> None:
        self._members = members
        self._comeback_ns = round(comeback_s * NS_PER_S)
        self._was_complete = False
        self._lacking_ns: int | None = None

    @property
    def complete(self) -> bool:
        roles = [member.role for member in self._members if member.accepting]
        return any(role.prefills for role in roles) and any(role.decodes for role in roles)

    def look(self, now_ns: int) -> bool:
        """Whether to take requests: `complete`, or so less than the time for coming back ago."""
        if self.complete:
            self._was_complete, self._lacking_ns = True, None
            return True
        if self._lacking_ns is None:
            self._lacking_ns = now_ns
        return self._was_complete and now_ns - self._lacking_ns < self._comeback_ns
