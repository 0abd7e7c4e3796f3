"""Admission by TPOT: whether the SLO on later tokens, and KV memory for them, holds on the decode
worker."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tandem.policy.admission.contract import Refusal, in_words
from tandem.policy.admission.decode_forecast import (
    EMPTY,
    DecodeForecast,
    DecodeLoad,
    load_with,
)
from tandem.policy.views import RequestView, WorkerView

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
    load = load_with(request, view, expected.at(ahead_s))
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
    return replace(request, slo=replace(request.slo, tpot_s=None))


def _wait_s(request: RequestView, expected: DecodeForecast, ahead_s: float) -> float:
    """The soonest instant found, never before `ahead_s`, at which the load holds."""
    # By then everybody who is known of has ended.
    high_s = expected.arriving_s + expected.answer_s
    if load_with(request, expected.view, expected.at(high_s)).worst() > 1:
        return inf
    low_s = ahead_s
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if load_with(request, expected.view, expected.at(middle_s)).worst() > 1:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


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
