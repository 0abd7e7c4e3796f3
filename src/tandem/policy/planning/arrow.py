"""Arrow's adaptive instances (Wu and others, arXiv 2505.11916): every instance serves both phases,
and roles change at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tandem.facts.fleet import Role
from tandem.policy.planning.contract import FleetView, Flip, Plan
from tandem.policy.planning.pools import last_seconds, lengths_of, movable, pool, quietest
from tandem.policy.planning.prediction import interval_kept, ttft_kept
from tandem.policy.views import WorkerView


@dataclass(frozen=True, slots=True)
class Arrow:
    """Never changes the number of workers; flips one at a time towards each role.

    To prefill: the TTFT predicted for a typical prompt breaks its SLO, and decode would keep
    its token interval with one instance fewer. To decode: the token interval breaks its SLO or
    `full_kv` of the KV memory is used, and prefill would keep its TTFT with one instance fewer.
    Where both phases break theirs nothing flips: it would only move the pain.
    """

    full_kv: float = 0.9
    recent_s: float = 60.0
    interval_s: float = 1.0

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:  # noqa: ARG002
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
