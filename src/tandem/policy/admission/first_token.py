"""Admission by TTFT: whether the SLO on the first token holds on the predicted route."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tandem.policy.admission.contract import Refusal, in_words
from tandem.policy.routing.contract import Route
from tandem.policy.routing.pairing import sides
from tandem.policy.routing.prediction import Predictor
from tandem.policy.views import RequestView, WorkerView


def first_token_bound_s(request: RequestView) -> float:
    """The promised TTFT or the deadline, whichever is sooner, counted from the arrival."""
    promised_s = inf if request.slo.ttft_s is None else request.slo.ttft_s
    if request.deadline_ns is None:
        return promised_s
    return min(promised_s, (request.deadline_ns - request.arrival_ns) / 1e9)


def first_token_refusal(
    request: RequestView, route: Route, workers: Sequence[WorkerView], now_ns: int
) -> Refusal | None:
    """Prefill load of Mooncake (arXiv 2407.00079, section 7): predicted TTFT over the bound,
    refused above 1. The queue of a worker falls by one second a second, so the wait is what is too
    much. A request that comes again is a new arrival: what it waited so far does not count then.
    """
    bound_s = first_token_bound_s(request)
    predicted_s = (now_ns - request.arrival_ns) / 1e9 + route.ttft_s
    if predicted_s <= bound_s:
        return None
    # Where waiting for the chosen workers helps, all the others need not be asked.
    chosen = [view for view in workers if view.worker in (route.prefill, route.decode)]
    idle_s = idle_first_token_s(request, chosen)
    if idle_s > bound_s:
        idle_s = idle_first_token_s(request, workers)
    if idle_s > bound_s:
        return Refusal(
            f"a TTFT of {in_words(bound_s)} cannot hold even on idle workers: "
            f"{request.prompt_tokens:,} prompt tokens take {in_words(idle_s)}",
            inf,
        )
    queued = next(view.queued_prefill_tokens for view in workers if view.worker == route.prefill)
    cause = f"{queued:,} prompt tokens wait at worker {route.prefill}"
    if not queued:
        cause = f"the best way now is over workers {route.prefill} and {route.decode}"
    return Refusal(
        f"predicted TTFT {in_words(predicted_s)} exceeds {in_words(bound_s)}: {cause}",
        route.ttft_s - bound_s,
    )


def idle_first_token_s(request: RequestView, workers: Sequence[WorkerView]) -> float:
    """Predicted seconds to the first token over the quickest pair, if nobody else were there; with
    the prefix that is cached now."""
    found = sides([_idle(view) for view in workers])
    if found is None:
        return inf
    predictor = Predictor()
    firsts = predictor.prefill_quotes(request, found.prefill, found.phase)
    if not found.decode:
        return min(quote.ttft_s for quote in firsts)
    links = dict.fromkeys(view.cost.network for view in found.prefill)
    seconds_s = {
        link: min(q.ttft_s for q in predictor.decode_quotes(request, found.decode, link))
        for link in links
    }
    return min(
        quote.ttft_s + seconds_s[view.cost.network]
        for quote, view in zip(firsts, found.prefill, strict=True)
    )


def _idle(view: WorkerView) -> WorkerView:
    return replace(
        view,
        running_sequences=0,
        waiting_requests=0,
        queued_prefill_tokens=0,
        context_tokens=0,
        expected_decodes=0,
        expected_context_tokens=0,
        free_blocks=view.total_blocks,
    )
