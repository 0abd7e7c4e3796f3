"""The prefill and decode pools of a fleet as planners count them: who is there, who gives way
first."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, fsum

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.policy.planning.contract import FleetView, Plan, Window
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


def bounded_plan(wanted: Sizes, fleet: FleetView, reason: str) -> Plan:
    """A plan for these sizes, or the nearest that the fleet may have."""
    bounded = within_bounds(wanted, fleet)
    return Plan(bounded.prefill, bounded.decode, reason=reason)


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


def decode_load(view: WorkerView) -> float:
    """The fuller of KV memory and sequence slots, 0 to 1."""
    return max(view.kv_used, view.running_sequences / view.max_sequences)


def ttft_s(view: WorkerView, prompt_tokens: float, spread: float = 1.0) -> float:
    """First token of a typical prompt behind the worker's queue, the queue times `spread`."""
    typical_tokens = ceil(prompt_tokens)
    waiting_s = spread * view.cost.queue_seconds(view.queued_prefill_tokens, typical_tokens)
    return waiting_s + view.cost.prefill_seconds(typical_tokens)


def token_interval_s(view: WorkerView, spread: float = 1.0, *, expected: bool = True) -> float:
    """A decode step over what runs and (`expected`) is on its way, times `spread`."""
    sequences, context_tokens = view.running_sequences, view.context_tokens
    if expected:
        sequences += view.expected_decodes
        context_tokens += view.expected_context_tokens
    return view.cost.decode_seconds(ceil(sequences * spread), ceil(context_tokens * spread))


def ttft_kept(
    fleet: FleetView, workers: Sequence[WorkerView], prompt_tokens: float, fewer: int = 0
) -> bool:
    """Whether the mean worker of a pool keeps the TTFT promised, with `fewer` workers than now."""
    bound_s = fleet.slo.ttft_s
    if bound_s is None or len(workers) <= fewer:
        return bound_s is None
    spread = len(workers) / (len(workers) - fewer)
    return mean([ttft_s(view, prompt_tokens, spread) for view in workers]) <= bound_s


def interval_kept(
    fleet: FleetView,
    workers: Sequence[WorkerView],
    full_kv: float,
    fewer: int = 0,
    *,
    expected: bool = True,
) -> bool:
    """Whether a pool keeps the TPOT promised and uses at most `full_kv` of its memory, with `fewer`
    workers than now; also once all are there that are on their way (`expected`)."""
    if len(workers) <= fewer:
        return False
    spread = len(workers) / (len(workers) - fewer)
    if mean([view.kv_used for view in workers]) * spread > full_kv:
        return False
    bound_s = fleet.slo.tpot_s
    interval_s = mean([token_interval_s(view, spread, expected=expected) for view in workers])
    return bound_s is None or interval_s <= bound_s
