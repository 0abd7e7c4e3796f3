"""Batches of requests that nobody waits for: which of them has the next turn, how many requests run
at once, and what a batch does next in its life."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class BatchStatus(StrEnum):
    """In OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in _FINAL


# Answers of a batch that wait for the disk; then no more of its requests start.
MOST_UNWRITTEN = 256
# After so long without calls the next one is not expected soon.
QUIET_S = 5.0
# So many are open at a time, in all and of one owner.
OPEN_BATCHES, OPEN_OF_OWNER = 16, 2
_FINAL = frozenset(
    {BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED}
)


class BatchAction(StrEnum):
    """What is to be done with a batch now, beside waiting for what runs."""

    WAIT = "wait"
    # Its requests are found in its file; the first time each is looked at.
    OPEN = "open"
    # Answers of requests go to the disk.
    WRITE = "write"
    # No request of it may run any longer.
    STOP = "stop"
    # What never ran is written down as an error, and both files are shown to their owner.
    FINALIZE = "finalize"


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch that has not ended; `serial` orders them by arrival. Once it is `opened`, so many of
    its requests are `waiting`, `running`, and `unwritten` (answered, and not on the disk). For a
    while it may be `paused`, and start no requests, or `blocked`, when the disk takes nothing of
    it. It is `working` while something is done with its files."""

    batch_id: str
    owner: str
    serial: int
    status: BatchStatus
    opened: bool = False
    waiting: int = 0
    running: int = 0
    unwritten: int = 0
    paused: bool = False
    blocked: bool = False
    working: bool = False
    expired: bool = False

    @property
    def ends(self) -> bool:
        """Whether nothing of it is to run any more."""
        return self.expired or self.status in (BatchStatus.CANCELLING, BatchStatus.FINALIZING)

    @property
    def may_run(self) -> bool:
        return (
            self.status is BatchStatus.IN_PROGRESS
            and self.opened
            and bool(self.waiting)
            and self.unwritten < MOST_UNWRITTEN
            and not (self.paused or self.blocked or self.expired)
        )


def next_action(view: BatchView) -> BatchAction:
    """Of one that is opened. Nothing is done twice at once: who is `working` waits."""
    if view.ends and view.running:
        return BatchAction.STOP
    if view.working or view.blocked or not view.opened:
        return BatchAction.WAIT
    if view.unwritten:
        return BatchAction.WRITE
    if not view.running and (view.ends or not view.waiting):
        return BatchAction.FINALIZE
    return BatchAction.WAIT


def next_to_open(views: Sequence[BatchView]) -> BatchView | None:
    """Which batch has its requests found next. An open one takes memory by its requests: so few are
    open at a time. Those that end do nothing else, and need not wait."""
    opened: dict[str, int] = {}
    closed: list[BatchView] = []
    for view in views:
        if view.opened or view.working:
            opened[view.owner] = opened.get(view.owner, 0) + 1
        elif not view.blocked:
            closed.append(view)
    full = sum(opened.values()) >= OPEN_BATCHES
    may_open = [
        view
        for view in closed
        if view.ends or not (full or opened.get(view.owner, 0) >= OPEN_OF_OWNER)
    ]
    return min(may_open, key=lambda view: (opened.get(view.owner, 0), view.serial), default=None)


def end_of(status: BatchStatus, *, expired: bool) -> BatchStatus:
    """How a batch in this status ends that is to be finalized."""
    if status is BatchStatus.CANCELLING:
        return BatchStatus.CANCELLED
    return BatchStatus.EXPIRED if expired else BatchStatus.COMPLETED


def requests_at_once(limit: int, quiet_s: float) -> int:
    """A quarter while anybody waits for an answer, and a while longer, for there will be a next
    one: every request that runs makes the steps of the others longer, however little urgent."""
    return max(1, limit // 4) if quiet_s < QUIET_S else limit


def next_batch(views: Sequence[BatchView]) -> BatchView | None:
    """Whose request starts next: of the owner with the fewest that run, the oldest batch."""
    running: dict[str, int] = {}
    for view in views:
        running[view.owner] = running.get(view.owner, 0) + view.running
    ready = [view for view in views if view.may_run]
    return min(ready, key=lambda view: (running[view.owner], view.serial), default=None)


def may_hold(limit: int, own: int, others: int, *, shared: bool) -> bool:
    """Whether an owner may hold `own` of a store in which others hold so much. Where it is
    `shared`, half of what they leave, so that whoever comes next finds something."""
    left = limit - others
    return own <= (left // 2 if shared else left)
