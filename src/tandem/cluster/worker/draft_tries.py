"""When drafts may be tried: what did not pay before may pay now, but all tries together cost at
most a small share of the time.

A try costs what its steps took longer than their tokens would have without drafts: also the reading
of prompts by a draft model that comes before its first guess, which no single step shows.
"""

# What tries that were given up may cost, of the time of the steps without drafts.
TRY_SHARE = 0.01
# With as many sequences as drafts paid for in so many steps they begin again at once.
PAID_STEPS = 16
# Before that, so many steps are worth waiting for: the first of a kind may just be disturbed.
TELLING_STEPS = 8


class DraftTries:
    """Owns what tries have cost, and with how many sequences drafts have paid."""

    def __init__(self) -> None:
        # Of tries that were given up, less the share of the time since.
        self._debt_ns = 0.0
        # Of the drafts of now: steps, and what these have cost; less than nothing is a gain.
        self._steps = 0
        self._cost_ns = 0.0
        self._paid_rows: set[int] = set()

    def may_begin(self, rows: int) -> bool:
        """Whether as many sequences may get drafts."""
        return self._debt_ns <= 0.0 or rows in self._paid_rows

    def is_young(self, rows: int) -> bool:
        """Whether it is too early to judge the drafts of now, which as many sequences get."""
        return rows not in self._paid_rows and 0 < self._steps < TELLING_STEPS

    @property
    def paying(self) -> bool:
        """Whether the drafts of now have cost nothing so far."""
        return self._cost_ns <= 0.0

    def plain_landed(self, took_ns: float) -> None:
        """Steps without drafts took so long."""
        self._debt_ns = max(0.0, self._debt_ns - TRY_SHARE * took_ns)

    def drafts_landed(self, rows: int, took_ns: float, plain_ns: float) -> None:
        """A step with drafts of as many sequences took so long, and its tokens would have taken
        `plain_ns` without."""
        self._steps += 1
        self._cost_ns += took_ns - plain_ns
        if self._steps >= PAID_STEPS and self.paying:
            self._paid_rows.add(rows)
            self._steps, self._cost_ns = 0, 0.0

    def ended(self, rows: int, *, given_up: bool) -> None:
        """As many sequences get no drafts any more: by a decision, or as they are fewer or more."""
        if given_up:
            self._paid_rows.discard(rows)
        self._debt_ns += max(0.0, self._cost_ns)
        self._steps, self._cost_ns = 0, 0.0
