"""The prefill and decode pools of a fleet as planners count them: who is there, who gives way
first."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.policy.planning.contract import FleetView, Window
from tandem.policy.views import WorkerView


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many workers of each role."""

    prefill: int
    decode: int

    @property
    def total(self) -> int:
        return self.prefill + self.decode

    def __str__(self) -> str:
        return f"{self.prefill} prefill + {self.decode} decode"


def pool(fleet: FleetView, role: Role) -> list[WorkerView]:
    """The workers of one role that take work, by id."""
    return sorted(
        (view for view in fleet.workers if view.accepting and view.role is role),
        key=lambda view: view.worker,
    )


def present(fleet: FleetView) -> Sizes:
    """Workers that take work or were asked for already."""
    return Sizes(*(_present(fleet, role) for role in (Role.PREFILL, Role.DECODE)))


def _present(fleet: FleetView, role: Role) -> int:
    return len(pool(fleet, role)) + fleet.starting.get(role.value, 0)


def in_change(fleet: FleetView) -> bool:
    """Whether workers start, drain or flip: what is measured now is not what was planned."""
    return any(fleet.starting.values()) or not all(view.accepting for view in fleet.workers)


def within_bounds(wanted: Sizes, fleet: FleetView) -> Sizes:
    """The nearest sizes that the fleet may have, at least one worker of each role.

    Where fewer (or more) are allowed than wanted, both pools give up (or get) the same share, so
    that no phase becomes the bottleneck of the other.
    """
    least, most = max(2, fleet.min_workers), fleet.max_workers
    if most < least:
        raise InvalidConfiguration(
            f"max_workers is {most}, but at least {least} are needed "
            "(min_workers, and one worker for each phase); raise max_workers or lower min_workers"
        )
    prefill, decode = max(1, wanted.prefill), max(1, wanted.decode)
    total = min(max(prefill + decode, least), most)
    share = min(
        range(1, total),
        key=lambda count: (max(prefill / count, decode / (total - count)), -count),
    )
    return Sizes(share, total - share)


def quietest(workers: Sequence[WorkerView]) -> list[WorkerView]:
    """Those with the least work left to drain first; ties by id."""
    return sorted(
        workers,
        key=lambda view: (
            view.requests,
            view.queued_prefill_tokens + view.context_tokens + view.expected_context_tokens,
            view.worker,
        ),
    )


def movable(workers: Sequence[WorkerView], fleet: FleetView) -> list[WorkerView]:
    """Those that may change their role."""
    return [view for view in workers if view.worker not in fleet.held]


def last_seconds(windows: Sequence[Window], seconds: float) -> list[Window]:
    """The most recent windows that cover `seconds`, at least one where there is any."""
    kept: list[Window] = []
    covered = 0.0
    for window in reversed(windows):
        if kept and covered + window.seconds > seconds:
            break
        kept.append(window)
        covered += window.seconds
    return kept[::-1]


def lengths_of(windows: Sequence[Window]) -> list[tuple[int, int]]:
    return [pair for window in windows for pair in window.lengths]


def mean(values: Sequence[float]) -> float:
    """Zero of nothing."""
    return fsum(values) / len(values) if values else 0.0
