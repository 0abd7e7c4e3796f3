"""Which KV a worker pulls from slower tiers for a request: only what is predicted to be faster than
computing it."""

from tandem.facts.fleet import Tier
from tandem.policy.routing.prediction import Predictor
from tandem.policy.views import RequestView, WorkerView


def worthwhile_pulls(
    request: RequestView, worker: WorkerView, predictor: Predictor
) -> tuple[tuple[Tier, int], ...]:
    """The runs to pull, in the order of the prompt: up to which token each tier's run reaches.

    A tier must earn its place: what is quicker computed again is not pulled.
    """
    fetch = predictor.fetch(request, worker)
    hit = request.hit(worker.worker)
    reached = min(hit.device_tokens, fetch.own_end_token)
    ends: list[tuple[Tier, int]] = []
    for tier, tokens in ((Tier.HOST, hit.host_tokens), (Tier.DISK, hit.disk_tokens)):
        end = min(reached + tokens, fetch.own_end_token)
        if end > reached:
            ends.append((tier, end))
            reached = end
    if fetch.end_token > reached:
        ends.append((Tier.REMOTE, fetch.end_token))
    return tuple(ends)
