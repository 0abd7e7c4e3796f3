"""Gangs of samples that end in any order, against the vote of all of them."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.scaling.contract import (
    Method,
    Sample,
    SampleState,
    ScalingPlan,
    StopReason,
)
from tandem.policy.scaling.policies import decide
from tandem.policy.scaling.tally import candidates_by_vote, vote_confidence

RUNNING = Sample(SampleState.RUNNING)
LOST = Sample(SampleState.LOST)


def finished(answer, score=0.0):
    return Sample(SampleState.FINISHED, answer, score)


def consistency(samples, **terms):
    terms = {"parallel": samples} | terms
    return ScalingPlan(Method.SELF_CONSISTENCY, samples=samples, **terms)


def full_vote(outcomes):
    """The slow, obvious way: most votes, and of equals the answer that came first by number."""
    answers = [each.answer for each in outcomes if each.answer is not None]
    counts = Counter(answers)
    return max(counts, key=lambda each: (counts[each], -answers.index(each)), default=None)


def play(plan, outcomes, draw_next):
    """Runs a gang whose sample n ends as `outcomes[n]`; `draw_next` says which of the running ones
    ends next. The last decision, and the samples at that instant."""
    samples = []
    for _ in range(3 * plan.samples + 1):
        decision = decide(plan, samples, spent_tokens=0)
        if decision.winner is not None:
            assert 0 <= decision.winner < len(samples)
            return decision, samples
        assert decision.start >= 0
        samples += [RUNNING] * decision.start
        assert len(samples) <= plan.samples
        running = [number for number, each in enumerate(samples) if not each.ended]
        assert 0 < len(running) <= plan.parallel
        ending = draw_next(running)
        samples[ending] = outcomes[ending]
    raise AssertionError("the gang does not end")


OUTCOMES = st.lists(
    st.one_of(
        st.just(LOST),
        st.builds(finished, st.sampled_from(["a", "b", "c", None])),
    ),
    min_size=1,
    max_size=9,
)


@given(st.data(), OUTCOMES, st.integers(1, 9))
def test_an_early_vote_is_the_full_vote_in_whatever_order_samples_end(data, outcomes, parallel):
    plan = consistency(len(outcomes), parallel=min(parallel, len(outcomes)))
    decision, samples = play(plan, outcomes, lambda ids: data.draw(st.sampled_from(ids)))
    expected = full_vote(outcomes)
    if expected is None:
        assert decision.stopped_by is StopReason.SAMPLES
    else:
        assert samples[decision.winner].answer == expected
    if decision.stopped_by is StopReason.VOTE:
        assert not all(each.ended for each in samples) or len(samples) < plan.samples


@given(st.data(), st.lists(st.sampled_from("ab"), min_size=3, max_size=9))
def test_a_gang_stops_as_soon_as_nobody_can_catch_the_leader(data, answers):
    outcomes = [finished(each) for each in answers]
    plan = consistency(len(outcomes))
    decision, samples = play(plan, outcomes, lambda ids: data.draw(st.sampled_from(ids)))
    votes = Counter(each.answer for each in samples if each.ended)
    outstanding = sum(not each.ended for each in samples)
    if decision.stopped_by is StopReason.VOTE:
        leader, rival = votes[samples[decision.winner].answer], min(votes.values())
        rival = rival if len(votes) > 1 else 0
        assert leader >= rival + outstanding
        # One vote less, and it would have been open still.
        assert leader - 1 <= rival + outstanding + 1


@given(st.data(), OUTCOMES, st.integers(1, 9), st.floats(0.55, 0.99))
def test_with_a_confidence_no_order_of_ending_changes_the_winner(
    data, outcomes, parallel, confidence
):
    plan = consistency(len(outcomes), confidence=confidence)
    by_number, samples = play(plan, outcomes, min)
    other = replace(plan, parallel=min(parallel, plan.samples))
    any_order, others = play(other, outcomes, lambda ids: data.draw(st.sampled_from(ids)))
    assert others[any_order.winner].answer == samples[by_number.winner].answer


@given(st.data(), st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), min_size=1))
def test_scores_add_up_to_the_best_of_n(data, scored):
    outcomes = [finished(answer, score) for answer, score in scored]
    plan = ScalingPlan(
        Method.BEST_OF_N, samples=len(scored), parallel=len(scored), votes=False, scored=True
    )
    alone, _ = play(plan, outcomes, lambda ids: data.draw(st.sampled_from(ids)))
    assert scored[alone.winner][1] == max(score for _, score in scored)
    together, samples = play(replace(plan, votes=True), outcomes, max)
    weights = Counter()
    for answer, score in scored:
        weights[answer] += score
    best = max(weights.values())
    assert weights[samples[together.winner].answer] == pytest.approx(best)


def test_a_sample_that_scores_enough_is_taken_at_once():
    plan = ScalingPlan(
        Method.BEST_OF_N, samples=4, parallel=4, votes=False, scored=True, confidence=0.9
    )
    samples = [finished("a", 0.5), finished("b", 0.95), RUNNING, finished("c", 0.99)]
    decision = decide(plan, samples, 0)
    assert (decision.winner, decision.stopped_by) == (1, StopReason.CONFIDENCE)
    # Nobody knows yet whether the first is as good.
    assert decide(plan, [RUNNING, *samples[1:]], 0).winner is None


def test_scores_break_ties_of_a_vote():
    plan = consistency(2, scored=True)
    samples = [finished("a", 0.2), finished("b", 0.7)]
    assert decide(plan, samples, 0).winner == 1
    assert decide(plan, [finished("a", 0.7), finished("b", 0.7)], 0).winner == 0


def test_confidence_is_the_beta_criterion():
    def confidence(*answers):
        samples = [finished(each) for each in answers]
        return vote_confidence(candidates_by_vote(samples, by_score=False))

    assert confidence("a", "a", "a") == 15 / 16
    assert confidence("a", "a", "a", "a") == 31 / 32
    assert confidence("a", "b") == 0.5
    # Beta(6, 3): one minus the regularised incomplete beta function at a half.
    assert confidence(*"aaaaabb") == pytest.approx(0.85546875)


def test_a_spent_budget_takes_the_best_so_far():
    plan = consistency(5, budget_tokens=100)
    samples = [RUNNING, finished("b"), finished("c"), finished("c"), RUNNING]
    assert decide(plan, samples, 99).winner is None
    decision = decide(plan, samples, 100)
    assert (decision.winner, decision.stopped_by) == (2, StopReason.BUDGET)
    # Nobody has an answer: the first that may still have one.
    assert decide(plan, [LOST, RUNNING, RUNNING], 100).winner == 1


def test_a_deadline_that_has_passed_takes_the_best_so_far():
    plan = consistency(5, parallel=3)
    samples = [RUNNING, finished("b"), RUNNING]
    assert decide(plan, samples, 0).start == 1
    decision = decide(plan, samples, 0, is_late=True)
    assert (decision.start, decision.winner, decision.stopped_by) == (0, 1, StopReason.DEADLINE)
    # A vote that is decided is decided, and without a sample there is nothing to take.
    decided = decide(plan, [finished("b")] * 3, 0, is_late=True)
    assert decided.stopped_by is StopReason.VOTE
    assert decide(plan, [], 0, is_late=True).start == 3


def rounds(*samples, most=3):
    plan = ScalingPlan(Method.RE_QUERY, samples=most, parallel=1)
    return decide(plan, samples, 0)


def test_rounds_go_on_until_two_agree():
    assert rounds().start == 1
    assert rounds(RUNNING).start == 0
    assert rounds(finished("a")).start == 1
    agreed = rounds(finished("a"), finished("b"), finished("a"), most=5)
    assert (agreed.winner, agreed.stopped_by) == (2, StopReason.VOTE)
    spent = rounds(finished("a"), finished("b"), finished("c"))
    assert (spent.winner, spent.stopped_by) == (2, StopReason.SAMPLES)
    # A round without an answer agrees with none; one that could not be asked ends the gang.
    assert rounds(finished(None), finished(None)).start == 1
    assert rounds(finished("a"), LOST).winner == 0
