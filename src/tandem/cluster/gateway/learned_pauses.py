"""How long tools usually take: by account and tool, and by session. Bounded; the account that has
most forgets what it learnt longest ago."""

from tandem.facts.fair_shares import FairShares
from tandem.policy.pauses import ExpectedPause, first_pause

MOST_LEARNED = 16_384
# Of an account: the kind of key, and its text (a tool's name, or a session's).
Key = tuple[str, str, str]


class LearnedPauses:
    """Weighted means and deviations by key."""

    def __init__(self, most: int = MOST_LEARNED) -> None:
        self._most = most
        self._pauses: dict[Key, ExpectedPause] = {}
        self._shares: FairShares[Key] = FairShares()

    def learn(self, account: str, tools: tuple[str, ...], session: str, seconds: float) -> None:
        """This session has paused for so long, for these tools if any are known."""
        for key in _keys(account, tools, session):
            known = self._pauses.get(key)
            self._pauses[key] = first_pause(seconds) if known is None else known.after(seconds)
            self._shares.add(key, account)
        while len(self._pauses) > self._most:
            oldest = self._shares.oldest(self._shares.gives_way(account) or account)
            self._shares.discard(oldest)
            del self._pauses[oldest]

    def expected(self, account: str, tools: tuple[str, ...], session: str) -> ExpectedPause | None:
        """By the tools where they are known, else by the session's own pauses so far."""
        for key in _keys(account, tools, session):
            if (known := self._pauses.get(key)) is not None:
                return known
        return None


def _keys(account: str, tools: tuple[str, ...], session: str) -> list[Key]:
    """The more telling first."""
    by_tools = [(account, "tools", " ".join(sorted(tools)))] if tools else []
    return [*by_tools, (account, "session", session)]
