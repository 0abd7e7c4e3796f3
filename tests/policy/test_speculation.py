"""Draft lengths: what pays is drafted, what does not is not, whatever the machine's noise."""

import itertools
import operator
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.worker.draft_history import DraftHistory, DraftRecord
from tandem.facts.steps import MOST_DRAFT_TOKENS
from tandem.policy.speculation import (
    ALIKE,
    LEAST_GAIN,
    MOST_STEP_DRAFTS,
    NO_DRAFTS,
    WEIGHED_COUNTS,
    DraftChances,
    DraftRule,
    Speculation,
)


def alike(kept, offered=1.0, places=4):
    """Chances of a sequence where each place is kept as often."""
    return DraftChances(tuple(kept**place for place in range(1, places + 1)), offered)


def chances(places):
    """Any chances of so many places."""
    shares = st.lists(st.floats(0.0, 1.0), min_size=places, max_size=places)
    products = shares.map(lambda each: tuple(itertools.accumulate(each, operator.mul)))
    return st.builds(DraftChances, products, st.floats(0.0, 1.0))


@dataclass(frozen=True)
class PlaneTimes:
    base: float
    per_token: float
    per_draft: float = 0.0

    def step_ns(self, tokens: int, drafted: int) -> float:
        return self.base + self.per_token * tokens + self.per_draft * drafted


def rate(lengths, running, times, longest):
    """Tokens a nanosecond of a step with drafts of these lengths."""
    expected = sum(
        1 + each.offered * sum(each.kept[:length])
        for each, length in zip(running, lengths, strict=True)
    )
    return expected / times.step_ns(len(running) + sum(lengths), longest)


@given(
    st.lists(chances(3), min_size=1, max_size=3),
    st.floats(1.0, 100.0),
    st.floats(0.0, 20.0),
    st.floats(0.0, 20.0),
)
def test_no_lengths_give_more_tokens_a_second(running, base, per_token, per_draft):
    times = PlaneTimes(base, per_token, per_draft)
    rule = Speculation(3).rule(running, times)
    chosen = rate([rule.tokens_for(each) for each in running], running, times, rule.longest)
    for lengths in itertools.product(range(4), repeat=len(running)):
        other = rate(lengths, running, times, max(lengths))
        assert other <= chosen * max(LEAST_GAIN, 1.001 / ALIKE)


@pytest.mark.parametrize("kept", [0.9, 0.999, 0.9999, 1 - 1e-16, 1.0])
def test_what_is_all_but_certain_is_drafted(kept):
    running = [alike(kept)]
    rule = Speculation(4).rule(running, PlaneTimes(100.0, 1.0))
    assert rule.tokens_for(running[0]) == 4


def test_chances_that_fall_a_little_shorten_no_drafts():
    """They change with every step, the rule does not."""
    rule = Speculation(4).rule([alike(0.8)] * 2, PlaneTimes(100.0, 1.0))
    assert rule.tokens_for(alike(0.75)) == 4
    assert rule.tokens_for(alike(0.3)) < 4


class AskedTimes:
    """Remembers the tokens of each step that was weighed."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def step_ns(self, tokens: int, drafted: int) -> float:
        self.asked.append(tokens)
        return 100.0


def test_no_more_drafts_are_weighed_than_a_step_takes():
    times = AskedTimes()
    Speculation(16).rule([alike(0.9, places=16)] * 256, times)
    assert max(times.asked) == 256 + MOST_STEP_DRAFTS
    assert len(times.asked) == 1 + 16 * len(WEIGHED_COUNTS)


@given(chances(MOST_DRAFT_TOKENS), st.integers(0, MOST_DRAFT_TOKENS), st.floats(0.0, 1.0))
def test_every_token_of_a_draft_has_the_least_chance(chances, longest, least_chance):
    length = DraftRule(longest, least_chance).tokens_for(chances)
    assert 0 <= length <= longest
    if length:
        assert chances.offered * chances.kept[length - 1] >= least_chance


def test_without_adapting_drafts_are_always_as_long():
    nothing = alike(0.0, offered=0.0, places=5)
    rule = Speculation(5, adaptive=False).rule([nothing], PlaneTimes(1.0, 9.0))
    assert rule.tokens_for(nothing) == 5
    assert NO_DRAFTS.tokens_for(alike(1.0)) == 0


@pytest.mark.parametrize("tokens", [0, 17])
def test_lengths_are_bounded(tokens):
    with pytest.raises(ValueError, match="1 to 16"):
        Speculation(tokens)


def test_what_was_kept_often_is_remembered_and_what_was_not_is_forgotten():
    chances = {}
    for kept in (0, 4):
        history, record = DraftHistory(4), DraftRecord()
        for _ in range(40):
            history.row_landed(record, max(1, kept), kept, 4, 4)
            history.step_landed(drafted=True)
        before = history.chances(DraftRecord()).kept[0]
        for _ in range(2000):
            history.step_landed(drafted=False)
        chances[kept] = before, history.chances(DraftRecord()).kept[0]
    assert chances[0][0] < 0.1 < 0.69 < chances[0][1] <= 0.7
    assert chances[4][0] == chances[4][1] > 0.95


def test_places_differ_and_sequences_differ():
    """The second place is kept seldom, whoever it is of; one of two sequences is kept less."""
    history, good, bad = DraftHistory(4), DraftRecord(), DraftRecord()
    chance = random.Random(1)
    for _ in range(400):
        for record, shares in ((good, (0.95, 0.6, 0.95, 0.95)), (bad, (0.8, 0.2, 0.8, 0.8))):
            kept = next((n for n, share in enumerate(shares) if chance.random() >= share), 4)
            history.row_landed(record, min(kept + 1, 4), kept, 4, 4)
        history.step_landed(drafted=True)
    of_good, of_bad = history.chances(good).kept, history.chances(bad).kept
    assert all(more > less for more, less in zip(of_good, of_bad, strict=True))
    for kept in (of_good, of_bad):
        assert kept[1] / kept[0] < 0.8 * kept[0]
        assert kept[2] / kept[1] > 1.2 * kept[1] / kept[0]


def test_a_miss_shortens_no_drafts_of_who_is_kept_often():
    history, record = DraftHistory(4), DraftRecord()
    for _ in range(100):
        history.row_landed(DraftRecord(), 4, 4, 4, 4)
        history.step_landed(drafted=True)
    before = history.chances(record).kept
    history.row_landed(record, 1, 0, 4, 4)
    assert history.chances(record).kept[3] > 0.4 * before[3]
