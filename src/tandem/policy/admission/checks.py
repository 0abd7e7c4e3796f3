"""The checks of early rejection: whether TTFT holds on the predicted route, TPOT and KV memory on
the decode worker.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from msgspec import structs

from tandem.policy.admission.contract import Refusal, in_words
from tandem.policy.admission.decode_forecast import (
    EMPTY,
    DecodeForecast,
    DecodeLoad,
    load_with,
    prompts_between_s,
)
from tandem.policy.routing.contract import Route
from tandem.policy.routing.pairing import quotes_by_link, sides
from tandem.policy.routing.prediction import Predictor
from tandem.policy.views import RequestView, WorkerView, view_of


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
    queued = view_of(workers, route.prefill).queued_prefill_tokens
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
    by_link = quotes_by_link(predictor, request, found)
    seconds_s = {link: min(quote.ttft_s for quote in by_link[link]) for link in by_link}
    return min(
        quote.ttft_s + seconds_s[view.cost.network]
        for quote, view in zip(firsts, found.prefill, strict=True)
    )


def _idle(view: WorkerView) -> WorkerView:
    return structs.replace(
        view,
        running_sequences=0,
        waiting_requests=0,
        queued_prefill_tokens=0,
        context_tokens=0,
        expected_decodes=0,
        expected_context_tokens=0,
        free_blocks=view.total_blocks,
    )


# Halvings of the time in which a retry is looked for: a millionth of it.
_HALVINGS = 20


def later_tokens_refusal(
    request: RequestView,
    expected: DecodeForecast,
    workers: Sequence[WorkerView],
    ahead_s: float,
) -> Refusal | None:
    """Refuses when the decode worker, `ahead_s` from now and with this request on it, breaks the
    promised TPOT or has no room. The wait is until enough of its sequences ended."""
    view = expected.view
    # Whoever leaves until then is followed by somebody as long as more come than fit.
    prompts_s = prompts_between_s(view, expected.crowd, expected.answer_tokens)
    load = load_with(request, view, expected.at(ahead_s), prompts_s)
    if load.worst() <= 1:
        return None
    decoding = [each for each in workers if each.accepting and each.role.decodes]
    alone = [(load_with(request, each, EMPTY), each) for each in decoding]
    if all(each.worst() > 1 for each, _ in alone):
        best, best_view = min(alone, key=lambda pair: (pair[0].worst(), pair[1].worker))
        return Refusal(_never(request, best, best_view), inf)
    return Refusal(_now_or_then(request, load, view, ahead_s), _wait_s(request, expected, ahead_s))


def without_infeasible(request: RequestView, workers: Sequence[WorkerView]) -> RequestView:
    """The request without an SLO on TPOT that no idle worker can keep."""
    if request.slo.tpot_s is None:
        return request
    decoding = [view for view in workers if view.accepting and view.role.decodes]
    if any(load_with(request, view, EMPTY).gap_share <= 1 for view in decoding):
        return request
    return structs.replace(request, slo=replace(request.slo, tpot_s=None))


def _wait_s(request: RequestView, expected: DecodeForecast, ahead_s: float) -> float:
    """The soonest instant found, never before `ahead_s`, at which the load holds if nobody else
    comes."""
    # By then everybody who is known of has ended.
    high_s = expected.arriving_s + expected.answer_s
    if _left(request, expected, high_s).worst() > 1:
        return inf
    low_s = ahead_s
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if _left(request, expected, middle_s).worst() > 1:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def _left(request: RequestView, expected: DecodeForecast, ahead_s: float) -> DecodeLoad:
    others = expected.at(ahead_s)
    prompts_s = prompts_between_s(expected.view, others.sequences, expected.answer_tokens)
    return load_with(request, expected.view, others, prompts_s)


def _now_or_then(request: RequestView, load: DecodeLoad, view: WorkerView, ahead_s: float) -> str:
    when = f"in {in_words(ahead_s)}" if ahead_s else "now"
    others = load.sequences - 1
    if load.kv_share == load.worst():
        return (
            f"{load.kv_tokens:,} KV tokens with this request exceed the {view.total_tokens:,} "
            f"of worker {view.worker}: {others} sequences decode there {when}"
        )
    if load.sequences_share == load.worst():
        return (
            f"worker {view.worker} takes {view.max_sequences} sequences at a time: "
            f"{others} decode there {when}"
        )
    return (
        f"predicted TPOT {in_words(load.gap_s)} exceeds {in_words(request.slo.tpot_s or 0)}: "
        f"{others} sequences decode at worker {view.worker} {when}"
    )


def _never(request: RequestView, load: DecodeLoad, view: WorkerView) -> str:
    if load.kv_share > 1:
        return (
            f"{load.kv_tokens:,} tokens of prompt and answer do not fit even on an idle worker: "
            f"{view.worker} holds {view.total_tokens:,}"
        )
    return (
        f"a TPOT of {in_words(request.slo.tpot_s or 0)} cannot hold even on an idle worker: "
        f"{view.worker} takes {in_words(load.gap_s)}"
    )
