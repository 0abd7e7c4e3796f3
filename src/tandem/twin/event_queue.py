"""What happens next on the virtual clock. Order is fixed: by instant, then by turn, then by the
order of entry, so that a run is the same every time."""

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count

Action = Callable[[int], None]


class Turn(IntEnum):
    """Who goes first at one instant: steps that land (by worker), then transfers, then the rest.

    Tokens that are there at an instant are known to whoever decides at that instant.
    """

    STEP = 0
    TRANSFER = 1
    OTHER = 2


class EventQueue:
    """A heap of actions, each called with its instant. `now_ns` is the virtual clock, `happened`
    how many were called."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Turn, int, int, Action]] = []
        self._before_next: list[Callable[[], object]] = []
        self._entries = count()
        self.now_ns = 0
        self.happened = 0

    def at(self, instant_ns: int, action: Action, turn: Turn = Turn.OTHER) -> None:
        """Call `action(instant_ns)` then; never in the past."""
        self.at_in_order(instant_ns, action, turn, 0)

    def at_in_order(self, instant_ns: int, action: Action, turn: Turn, order: int) -> None:
        """As `at`; within one instant and turn, smaller `order` first."""
        assert instant_ns >= self.now_ns, "time never runs back"
        heappush(self._heap, (instant_ns, turn, order, next(self._entries), action))

    def before_next(self, action: Callable[[], object]) -> None:
        """Call it once, when all of this turn has happened and before what comes next is known."""
        self._before_next.append(action)

    def next_ns(self) -> int | None:
        self._end_turn()
        return self._heap[0][0] if self._heap else None

    def step(self) -> None:
        """Call the next one."""
        self._end_turn()
        instant_ns, _, _, _, action = heappop(self._heap)
        self.now_ns = instant_ns
        self.happened += 1
        action(instant_ns)

    def _end_turn(self) -> None:
        while self._before_next:
            actions, self._before_next = self._before_next, []
            for action in actions:
                action()


class Timer:
    """One instant at which a machine wants to be woken, moved at will.

    The queue is asked only for instants before the one it knows: a wish that was put off is seen
    when the earlier instant comes, so that moving it on costs nothing.
    """

    def __init__(self, queue: EventQueue, action: Action) -> None:
        self._queue = queue
        self._action = action
        self._wanted_ns: int | None = None
        self._queued_ns: int | None = None

    def set(self, instant_ns: int | None) -> None:
        """Call the action then, and not before; None: never."""
        self._wanted_ns = instant_ns
        if instant_ns is not None and (self._queued_ns is None or instant_ns < self._queued_ns):
            self._queued_ns = max(instant_ns, self._queue.now_ns)
            self._queue.at(self._queued_ns, self._due)

    def _due(self, now_ns: int) -> None:
        if now_ns != self._queued_ns:
            return
        self._queued_ns = None
        wanted_ns = self._wanted_ns
        if wanted_ns is not None and wanted_ns > now_ns:
            self.set(wanted_ns)
        elif wanted_ns is not None:
            self._wanted_ns = None
            self._action(now_ns)
