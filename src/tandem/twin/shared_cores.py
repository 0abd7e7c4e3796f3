"""The cores of one machine, which the steps of all its simulated workers share: while others
compute, each goes on at a share of its speed."""

from typing import Protocol


class CoreUser(Protocol):
    """An engine of a worker on this machine."""

    def share_with(self, others: int) -> None:
        """From now on so many other workers compute."""
        ...


class SharedCores:
    """Knows which engines have a step under way."""

    def __init__(self) -> None:
        self._users: dict[CoreUser, None] = {}

    @property
    def users(self) -> int:
        return len(self._users)

    def enter(self, user: CoreUser) -> None:
        """Its step begins."""
        self._users[user] = None
        self._tell()

    def leave(self, user: CoreUser) -> None:
        """No step of it is under way."""
        if user in self._users:
            del self._users[user]
            self._tell()

    def _tell(self) -> None:
        for user in list(self._users):
            user.share_with(len(self._users) - 1)
