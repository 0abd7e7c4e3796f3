"""Which samples of a gang are started, when it is decided, and who wins.

Without a `confidence` the winner is that of the full vote, in whatever order samples end: a gang
stops early only once nothing can change it. With one, samples count in the order of their numbers,
so that neither timing nor the shortness of an answer favours it, and equal samples give an equal
decision.
"""

from collections.abc import Iterator, Sequence

from tandem.policy.scaling.contract import (
    Method,
    Sample,
    SampleState,
    ScalingDecision,
    ScalingPlan,
    StopReason,
)
from tandem.policy.scaling.tally import (
    Candidate,
    candidates_by_score,
    candidates_by_vote,
    cannot_be_caught,
    vote_confidence,
)

# Of the rounds of a re-query.
_AGREEING_ROUNDS = 2


def decide(
    plan: ScalingPlan, samples: Sequence[Sample], spent_tokens: int, *, is_late: bool = False
) -> ScalingDecision:
    """What to do with the gang now. `samples` are those started so far, by number; it `is_late`
    once its deadline has passed."""
    for counted in _counted(plan, samples):
        if settled := _settled(plan, counted):
            return settled
    running = sum(not sample.ended for sample in samples)
    if is_late and samples:
        return ScalingDecision(winner=_best(plan, samples), stopped_by=StopReason.DEADLINE)
    if plan.budget_tokens is not None and spent_tokens >= plan.budget_tokens:
        return ScalingDecision(winner=_best(plan, samples), stopped_by=StopReason.BUDGET)
    # After a round that is lost there is no answer to ask about again.
    is_over = len(samples) >= plan.samples or (
        plan.method is Method.RE_QUERY and any(s.state is SampleState.LOST for s in samples)
    )
    if is_over and not running:
        return ScalingDecision(winner=_best(plan, samples), stopped_by=StopReason.SAMPLES)
    return ScalingDecision(start=min(plan.parallel - running, plan.samples - len(samples)))


def _counted(plan: ScalingPlan, samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    """The samples by which to decide; with a confidence, those of each instant at which one more
    counted."""
    if plan.confidence is None:
        yield samples
        return
    for number, sample in enumerate(samples):
        if not sample.ended:
            return
        yield samples[: number + 1]


def _settled(plan: ScalingPlan, counted: Sequence[Sample]) -> ScalingDecision | None:
    """The winner, where samples are still outstanding and none is needed."""
    candidates = _candidates(plan, counted)
    if not candidates:
        return None
    leader = candidates[0]
    if plan.method is Method.RE_QUERY:
        agree = leader.weight >= _AGREEING_ROUNDS
        return ScalingDecision(0, leader.numbers[-1], StopReason.VOTE) if agree else None
    outstanding = [
        number
        for number in range(plan.samples)
        if number >= len(counted) or not counted[number].ended
    ]
    if not outstanding:
        return None
    if plan.votes and cannot_be_caught(candidates, outstanding, has_ties_by_score=plan.scored):
        return ScalingDecision(0, leader.shown, StopReason.VOTE)
    if plan.confidence is not None and _confidence(plan, candidates) >= plan.confidence:
        return ScalingDecision(0, leader.shown, StopReason.CONFIDENCE)
    return None


def _candidates(plan: ScalingPlan, samples: Sequence[Sample]) -> list[Candidate]:
    if not plan.votes:
        return candidates_by_score(samples)
    return candidates_by_vote(samples, by_score=plan.method is Method.BEST_OF_N)


def _confidence(plan: ScalingPlan, candidates: Sequence[Candidate]) -> float:
    """In the leader: the votes say, or the verifier that scored it."""
    if plan.method is Method.BEST_OF_N:
        return candidates[0].weight
    return vote_confidence(candidates)


def _best(plan: ScalingPlan, samples: Sequence[Sample]) -> int:
    """The winner of a gang that stops: by votes or scores, of rounds the latest, else the first
    sample that was not lost."""
    finished = [n for n, sample in enumerate(samples) if sample.state is SampleState.FINISHED]
    if plan.method is Method.RE_QUERY and finished:
        return finished[-1]
    if candidates := _candidates(plan, samples):
        return candidates[0].shown
    running = [n for n, sample in enumerate(samples) if sample.state is SampleState.RUNNING]
    return next(iter((*finished, *running)), 0)
