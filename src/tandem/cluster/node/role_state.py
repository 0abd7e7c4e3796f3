"""The role state of a worker: its role, and whether it accepts requests, drains, flips or
leaves."""

from tandem.facts.fleet import Role
from tandem.messages.cluster import Drain


class RoleState:
    """`drain` is what the worker is to do once nothing is left; None while it takes requests."""

    def __init__(self, role: Role, accepting: bool) -> None:
        self.role = role
        self.drain: Drain | None = None if accepting else Drain()
        self._told_to_leave = False

    @property
    def accepting(self) -> bool:
        return self.drain is None

    @property
    def leaving(self) -> bool:
        return self.drain is not None and self.drain.leave

    @property
    def again(self) -> bool:
        """Whether it leaves only to be started anew."""
        return self.drain is not None and self.drain.again

    def leave(self) -> None:
        """Whoever started the process wants it to end: nobody else can call that off."""
        self._told_to_leave = True
        self.drain = Drain(leave=True)

    def drain_for(self, order: Drain) -> None:
        """The last order counts, but for leaving."""
        self.drain = Drain(leave=True) if self._told_to_leave else order

    def undrain(self) -> None:
        if not self._told_to_leave:
            self.drain = None

    def take_role(self) -> bool:
        """The worker is empty: take the role that waits for that. Whether there is one."""
        if self.drain is None or self.drain.leave or self.drain.then_role is None:
            return False
        self.role, self.drain = self.drain.then_role, None
        return True
