"""Which KV is worth bringing from slower tiers, and which is quicker computed again."""

from tandem.facts.fleet import Tier
from tandem.policy.views import RequestView, WorkerView


def worthwhile_pulls(request: RequestView, worker: WorkerView) -> tuple[tuple[Tier, int], ...]:
    """The runs to pull for a request at a worker, in the order of the prompt: up to which token
    each tier's run reaches. The last prompt token is always computed, so nothing is pulled for it.

    A tier must earn its place: a run whose pull takes longer than computing those tokens ends the
    list, since what follows it would have nothing to stand on.
    """
    hit = request.hit(worker.worker)
    own_tokens = hit.tokens
    runs = (
        (Tier.HOST, hit.host_tokens),
        (Tier.DISK, hit.disk_tokens),
        (Tier.REMOTE, max(0, request.remote_tokens - own_tokens)),
    )
    ends: list[tuple[Tier, int]] = []
    start = hit.device_tokens
    for tier, tokens in runs:
        end = min(start + tokens, request.prompt_tokens - 1)
        if end <= start:
            continue
        pull_seconds = worker.cost.pull_seconds(tier, end - start)
        if pull_seconds >= worker.cost.prefill_seconds(end - start, start):
            break
        ends.append((tier, end))
        start = end
    return tuple(ends)
