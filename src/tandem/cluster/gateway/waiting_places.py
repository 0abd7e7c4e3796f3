"""Bounded places for requests that wait for their first token, shared fairly by accounts (max-min:
one account alone may have all)."""

from dataclasses import dataclass

from tandem.facts.fair_shares import FairShares


@dataclass(frozen=True, slots=True)
class Entry:
    """Whether a request may wait, and which other one `gives_way` to it and is to be refused."""

    admitted: bool
    gives_way: str | None = None


class WaitingPlaces:
    """At most `most` requests wait, by id. Where all places are taken, the account that has most of
    them gives up its newest, as long as it then still has as many as the newcomer's."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: FairShares[str] = FairShares()

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, request_id: str, account: str) -> Entry:
        """One more; each answer of a call with several is one."""
        loser = None
        if len(self._waiting) >= self._most:
            largest = self._waiting.gives_way(account)
            if largest is None:
                return Entry(admitted=False)
            loser = self._waiting.newest(largest)
            self._waiting.discard(loser)
        self._waiting.add(request_id, account)
        return Entry(admitted=True, gives_way=loser)

    def leave(self, request_id: str) -> None:
        """It has its first token, or is gone; nothing happens where it was not waiting."""
        self._waiting.discard(request_id)
