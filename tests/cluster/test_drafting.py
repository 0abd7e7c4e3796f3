"""Drafting on a worker: rules follow what steps take, also where the first look was disturbed."""

from types import SimpleNamespace

import pytest

from tandem.cluster.worker.draft_history import DraftRecord
from tandem.cluster.worker.sequence import Phase
from tandem.cluster.worker.speculation import Drafting
from tandem.facts.steps import StepResult
from tandem.facts.token_tree import TokenTree
from tandem.policy.speculation import Speculation

VOCABULARY = 100


class Sequences:
    """So many that decode: steps take as long as `step_ns` says, of each draft `kept` are kept."""

    def __init__(self, rows: int, step_ns, kept: int, most: int = 4) -> None:
        self.drafting = Drafting(Speculation(most), VOCABULARY, pipeline_stages=1)
        self._sequences = [
            SimpleNamespace(drafts=DraftRecord(), phase=Phase.ENDED, proposal=TokenTree())
            for _ in range(rows)
        ]
        self._step_ns, self._kept, self._now_ns = step_ns, kept, 0
        self._drafted = 0
        # Draft tokens wanted of each sequence, step by step.
        self.wanted: list[int] = []

    def step(self) -> None:
        rows = len(self._sequences)
        rule = self.drafting.rule([each.drafts for each in self._sequences])
        wanted = rule.tokens_for(self.drafting.chances(self._sequences[0].drafts))
        drafted = self._drafted if wanted else 0
        builder = SimpleNamespace(
            launched_ns=self._now_ns,
            prompts=False,
            drafts=wanted + drafted > 0,
            tokens=rows * (1 + drafted),
            rows=[(each, 0, True) for each in self._sequences],
            draft_counts=[drafted] * rows,
            draft_depths=[drafted] * rows,
            proposals=[wanted] * rows,
            longest_proposal=wanted,
        )
        self._now_ns += self._step_ns(len(self.wanted), builder)
        result = StepResult(
            0,
            (),
            token_counts=(1 + min(self._kept, drafted),) * rows,
            proposals=(TokenTree((7,) * wanted),) * rows,
        )
        self.drafting.step_landed(builder, result, self._now_ns)
        self._drafted = wanted
        self.wanted.append(wanted)


@pytest.mark.parametrize("rows", [1, 16])
def test_a_disturbed_first_step_does_not_make_drafts_pay_for_ever(rows):
    """The first step took twenty times as long as all later ones without drafts."""

    def step_ns(number, builder):
        if not number:
            return 2_000_000
        return 500_000 if builder.drafts else 100_000

    sequences = Sequences(rows, step_ns, kept=1)
    for _ in range(200):
        sequences.step()
    assert any(sequences.wanted[:20])
    assert sum(map(bool, sequences.wanted[100:])) < 20


@pytest.mark.parametrize("rows", [1, 8])
def test_what_pays_is_drafted_all_but_now_and_then(rows):
    def step_ns(number, builder):
        return 100_000 + 500 * builder.tokens + 2_000 * builder.longest_proposal

    sequences = Sequences(rows, step_ns, kept=4)
    for _ in range(400):
        sequences.step()
    without = [at for at, wanted in enumerate(sequences.wanted[20:]) if not wanted]
    assert 3 <= len(without) <= 20
    assert set(sequences.wanted) <= {0, 1, 2, 3, 4}
    assert sequences.wanted.count(4) > 350


def test_where_it_declines_few_steps_are_spent():
    """And as soon as that is different it drafts."""
    cheap = [False]

    def step_ns(number, builder):
        return 100_000 if cheap[0] or not builder.drafts else 900_000

    sequences = Sequences(4, step_ns, kept=4)
    for _ in range(200):
        sequences.step()
    assert sum(map(bool, sequences.wanted[40:])) < 30
    assert sequences.drafting.totals.declined > 4 * 150
    cheap[0] = True
    for _ in range(600):
        sequences.step()
    assert sum(map(bool, sequences.wanted[-100:])) > 80
