"""Turns of accounts: the order in which requests of several accounts go, each request counting as
one.

Start-time fair queueing (Goyal et al., SIGCOMM 1996) with requests as the unit: an account's next
request has its turn after its last one, but never before the turn that was reached. One account
alone goes in order of arrival.
"""


class Turns:
    """Accounts without anything ahead of the reached turn are forgotten."""

    def __init__(self) -> None:
        self._reached = 0
        self._last: dict[str, int] = {}
        self._forget_at = 64

    def __len__(self) -> int:
        return len(self._last)

    def next_of(self, account: str) -> int:
        """The turn of one more request; of equal ones the first to arrive goes first."""
        turn = max(self._reached, self._last.get(account, -1) + 1)
        self._last[account] = turn
        if len(self._last) >= self._forget_at:
            # What lies behind says nothing: the next turn is the reached one anyway.
            self._last = {name: last for name, last in self._last.items() if last >= self._reached}
            self._forget_at = 2 * len(self._last) + 64
        return turn

    def taken(self, turn: int) -> None:
        """A request of this turn goes."""
        self._reached = max(self._reached, turn)
