"""What happens next on the virtual clock. Order is fixed: by instant, then by turn, then by the
order of entry, so that a run is the same every time."""

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count

Happening = Callable[[int], None]


class Turn(IntEnum):
    """Who goes first at one instant: steps that land (by worker), then transfers, then the rest.

    Tokens that are there at an instant are known to whoever decides at that instant.
    """

    STEP = 0
    TRANSFER = 1
    OTHER = 2


class Agenda:
    """A heap of happenings, each called with its instant."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Turn, int, int, Happening]] = []
        self._entries = count()
        self.now_ns = 0
        self.happened = 0

    def at(self, instant_ns: int, happening: Happening, turn: Turn = Turn.OTHER) -> None:
        """Call `happening(instant_ns)` then; never in the past."""
        self.at_in_order(instant_ns, happening, turn, 0)

    def at_in_order(self, instant_ns: int, happening: Happening, turn: Turn, order: int) -> None:
        """As `at`; within one instant and turn, smaller `order` first."""
        assert instant_ns >= self.now_ns, "time never runs back"
        heappush(self._heap, (instant_ns, turn, order, next(self._entries), happening))

    def next_ns(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def step(self) -> None:
        """Let the next happening happen."""
        instant_ns, _, _, _, happening = heappop(self._heap)
        self.now_ns = instant_ns
        self.happened += 1
        happening(instant_ns)
