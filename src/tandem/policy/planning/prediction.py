"""Predicted latency of a pool if its present work were spread over another number of workers."""

from collections.abc import Sequence
from math import ceil

from tandem.policy.planning.contract import FleetView
from tandem.policy.planning.pools import mean
from tandem.policy.views import WorkerView


def ttft_s(view: WorkerView, prompt_tokens: float, spread: float = 1.0) -> float:
    """First token of a typical prompt behind the worker's queue, the queue times `spread`."""
    typical_tokens = ceil(prompt_tokens)
    waiting_s = spread * view.cost.queue_seconds(view.queued_prefill_tokens, typical_tokens)
    return waiting_s + view.cost.prefill_seconds(typical_tokens)


def token_interval_s(view: WorkerView, spread: float = 1.0) -> float:
    """A decode step over what runs and is on its way, times `spread`."""
    sequences = view.running_sequences + view.expected_decodes
    context_tokens = view.context_tokens + view.expected_context_tokens
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
    fleet: FleetView, workers: Sequence[WorkerView], full_kv: float, fewer: int = 0
) -> bool:
    """Whether a pool keeps the TPOT promised and uses at most `full_kv` of its memory, with `fewer`
    workers than now."""
    if len(workers) <= fewer:
        return False
    spread = len(workers) / (len(workers) - fewer)
    if mean([view.kv_used for view in workers]) * spread > full_kv:
        return False
    bound_s = fleet.slo.tpot_s
    interval_s = mean([token_interval_s(view, spread) for view in workers])
    return bound_s is None or interval_s <= bound_s
