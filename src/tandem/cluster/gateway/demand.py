"""Demand of a gateway's clients: requests that wait for a first token and the bounded places for
them, the mean length of answers, and when to retry."""

from dataclasses import dataclass

from tandem.facts.fair_shares import FairShares

NS_PER_S = 1e9
# The newest answer or gap counts so much against all before; of the first answers, as much as each
# of those and the first guess.
NEWEST = 0.02
FIRST_GUESS_TOKENS = 128.0
LONGEST_RETRY_S = 60.0


class Demand:
    """Counts open requests by id. `waiting` of them have no token yet."""

    def __init__(self) -> None:
        self.waiting = 0
        self._answers: dict[str, int] = {}
        self._mean_tokens = FIRST_GUESS_TOKENS
        self._finished = 0
        self._mean_gap_s = 0.0
        self._started_ns: int | None = None

    @property
    def open_ids(self) -> tuple[str, ...]:
        return tuple(self._answers)

    def arrived(self, request_id: str) -> None:
        self._answers[request_id] = 0
        self.waiting += 1

    def got_token(self, request_id: str, now_ns: int, tokens: int = 1) -> bool:
        """It got `tokens` more. Whether the first is among them. Unknown ids are of readers who
        left."""
        before_tokens = self._answers.get(request_id)
        if before_tokens is None:
            return False
        self._answers[request_id] = before_tokens + tokens
        if before_tokens:
            return False
        self.waiting -= 1
        self._start(now_ns)
        return True

    def left(self, request_id: str, *, finished: bool) -> None:
        """The reader is gone, having got all of its answer or not."""
        tokens = self._answers.pop(request_id)
        self.waiting -= tokens == 0
        if finished:
            self._finished += 1
            newest = max(NEWEST, 1 / (1 + self._finished))
            self._mean_tokens += newest * (tokens - self._mean_tokens)

    def expected_tokens(self, max_tokens: int) -> float:
        """The mean of finished answers, within what the request allows."""
        return min(self._mean_tokens, float(max_tokens))

    def retry_after_s(self) -> float:
        """When those who wait now will have begun, if all goes on as it did."""
        return min(max(1.0, self.waiting * self._mean_gap_s), LONGEST_RETRY_S)

    def _start(self, now_ns: int) -> None:
        # Only gaps while a request waits measure the cluster; others measure the clients.
        if self._started_ns is not None and self.waiting:
            gap_s = (now_ns - self._started_ns) / NS_PER_S
            self._mean_gap_s += (gap_s - self._mean_gap_s) * 10 * NEWEST
        self._started_ns = now_ns


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
