"""Leaves alone what does not answer: nobody waits for it twice in a row."""

from collections.abc import Callable

from tandem.facts.backoff import longest, spread

NS_PER_S = 1_000_000_000


class Breaker:
    """After a failure nothing is asked for `retry_s`, twice as long after each further one, up to
    `most_s`; then one try decides."""

    def __init__(
        self, retry_s: float, most_s: float, *, chance: Callable[[], float] = longest
    ) -> None:
        """`chance` spreads these waits (`facts.backoff`)."""
        assert 0 < retry_s <= most_s
        self._retry_s = retry_s
        self._most_s = most_s
        self._chance = chance
        self._failures = 0
        self._again_ns = 0
        self.problem = ""

    def open(self, now_ns: int) -> bool:
        """Whether it is to be left alone by now; `problem` says why."""
        return self._failures > 0 and now_ns < self._again_ns

    def failed(self, problem: str, now_ns: int) -> None:
        # Doubled at most 32 times: no float grows beyond its bounds in a year of failures.
        wait_s = min(self._most_s, self._retry_s * 2 ** min(self._failures, 32))
        self._failures += 1
        self._again_ns = now_ns + round(spread(wait_s, self._chance()) * NS_PER_S)
        self.problem = problem

    def worked(self) -> None:
        self._failures = 0
        self.problem = ""
