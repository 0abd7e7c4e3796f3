"""Planners that keep the number of workers and change their roles: Arrow and TetriInfer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tandem.facts.fleet import Role
from tandem.policy.planning.contract import FleetView, Flip, Move, Plan
from tandem.policy.planning.pools import (
    decode_load,
    interval_kept,
    last_seconds,
    lengths_of,
    mean,
    movable,
    pool,
    quietest,
    ttft_kept,
)
from tandem.policy.views import WorkerView


@dataclass(frozen=True, slots=True)
class Arrow:
    """Arrow's adaptive instances (Wu and others, arXiv 2505.11916): every instance serves both
    phases. Never changes the number of workers; flips one at a time towards each role.

    To prefill: the TTFT predicted for a typical prompt breaks its SLO, and decode would keep
    its token interval with one instance fewer. To decode: the token interval breaks its SLO or
    `full_kv` of the KV memory is used, and prefill would keep its TTFT with one instance fewer.
    Where both phases break theirs nothing flips: it would only move the pain.
    """

    full_kv: float = 0.9
    recent_s: float = 60.0
    interval_s: float = 1.0

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        pairs = lengths_of(last_seconds(fleet.windows, self.recent_s))
        prompt_tokens = median([prompt for prompt, _ in pairs]) if pairs else 0
        prefilling, decoding = pool(fleet, Role.PREFILL), pool(fleet, Role.DECODE)
        if not prefilling or not decoding:
            return Plan(reason="one of the pools is empty")
        late = not ttft_kept(fleet, prefilling, prompt_tokens)
        slow = not interval_kept(fleet, decoding, self.full_kv)
        if late and slow:
            return Plan(reason="both phases are late")
        if late and len(decoding) > 1 and interval_kept(fleet, decoding, self.full_kv, fewer=1):
            return _flip(fleet, decoding, Role.PREFILL, "TTFT is late")
        if slow and len(prefilling) > 1 and ttft_kept(fleet, prefilling, prompt_tokens, fewer=1):
            return _flip(fleet, prefilling, Role.DECODE, "tokens are late")
        return Plan(reason="no instance would do better elsewhere")


def _flip(fleet: FleetView, workers: Sequence[WorkerView], role: Role, why: str) -> Plan:
    if fleet.starting.get(role.value):
        return Plan(reason=f"{why}, but help is on its way")
    candidates = quietest(movable(workers, fleet))
    if not candidates:
        return Plan(reason=f"{why}, but no worker of the other phase may change its role")
    flip = Flip(candidates[0].worker, role.value)
    return Plan(flips=(flip,), reason=f"{why}; the other phase has room")


@dataclass(slots=True)
class TetriInfer:
    """TetriInfer's two levels (Hu and others, arXiv 2401.11181): idle instances flip to the loaded
    phase, running decodes migrate away from hot instances.

    Never changes the number of workers. An instance whose load stayed below `idle_load` for
    `idle_s` (the paper: 10 % for a minute) flips if the other phase is loaded above `busy_load`.

    Load of a prefill instance is the seconds of prompts before it over the TTFT promised (or over
    one second), of a decode instance the fuller of KV memory and sequence slots. A decode instance
    above `hot_load` hands over half of its lead over the coolest one, if that lead is `hot_lead` or
    more: a smaller one is not worth the copy.
    """

    idle_load: float = 0.1
    idle_s: float = 60.0
    busy_load: float = 0.5
    hot_load: float = 0.85
    hot_lead: float = 0.2
    interval_s: float = 5.0
    _idle_since_ns: dict[str, int] = field(default_factory=dict, init=False)

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        pools = {role: pool(fleet, role) for role in (Role.PREFILL, Role.DECODE)}
        self._watch(fleet, pools, now_ns)
        flips: list[Flip] = []
        for role, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            idle = [
                view for view in quietest(movable(pools[role], fleet)) if self._idle(view, now_ns)
            ]
            busy = mean([_load(view, fleet) for view in pools[other]]) > self.busy_load
            if busy and idle and len(pools[role]) > 1:
                flips.append(Flip(idle[0].worker, other.value))
                del self._idle_since_ns[idle[0].worker]
        moves = self._moves([view for view in pools[Role.DECODE] if view.worker not in _of(flips)])
        reason = f"{len(flips)} idle instances flip, {len(moves)} hot ones hand over"
        return Plan(flips=tuple(flips), moves=moves, reason=reason)

    def _watch(self, fleet: FleetView, pools: dict[Role, list[WorkerView]], now_ns: int) -> None:
        self._idle_since_ns = {
            view.worker: self._idle_since_ns.get(view.worker, now_ns)
            for views in pools.values()
            for view in views
            if _load(view, fleet) < self.idle_load
        }

    def _idle(self, view: WorkerView, now_ns: int) -> bool:
        since_ns = self._idle_since_ns.get(view.worker)
        return since_ns is not None and now_ns - since_ns >= self.idle_s * 1e9

    def _moves(self, decoding: list[WorkerView]) -> tuple[Move, ...]:
        ranked = sorted(decoding, key=lambda view: (decode_load(view), view.worker))
        moves = []
        # The hottest is paired with the coolest, the next with the next: each takes part once.
        for cool, hot in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
            lead = decode_load(hot) - decode_load(cool)
            if decode_load(hot) > self.hot_load and lead >= self.hot_lead:
                tokens = min(int(hot.context_tokens * lead / (2 * decode_load(hot))), _room(cool))
                if tokens > 0:
                    moves.append(Move(hot.worker, cool.worker, tokens))
        return tuple(moves)


def _of(flips: list[Flip]) -> list[str]:
    return [flip.worker for flip in flips]


def _room(view: WorkerView) -> int:
    return max(0, view.free_blocks * view.block_size - view.expected_context_tokens)


def _load(view: WorkerView, fleet: FleetView) -> float:
    if view.role is Role.DECODE:
        return decode_load(view)
    return view.cost.queue_seconds(view.queued_prefill_tokens) / (fleet.slo.ttft_s or 1.0)
