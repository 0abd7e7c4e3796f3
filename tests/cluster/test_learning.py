"""Laws of learning: what is as listed is left alone, what is not is found within bounds, a few
outliers change little, and what is not measured any more heals."""

from random import Random

import pytest

from tandem.cluster.gateway.learning import (
    KEPT_A_PEER_NS,
    WINDOW,
    LearnedCorrection,
    RecentMeasurements,
)
from tandem.cluster.gateway.link_use import LinkUses
from tandem.cluster.gateway.measured_costs import MeasuredCosts
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.worker.step_tally import StepTally, StepWork, work_of
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, StepShape, WorkerCost
from tandem.facts.correction import UNCORRECTED, Correction
from tandem.facts.fleet import Tier
from tandem.facts.kv import MoveReport, TierFigures
from tandem.facts.step_totals import StepTotals
from tandem.policy.learning import Learning
from tests.cluster.cluster_parts import register

SECOND = 1_000_000_000
LISTED = WorkerCost(
    FittedStepTime(0.004, 2e-5, 1e-9, 1e-4, 2e-8, 3e-6),
    kv_bytes_per_token=1000.0,
    chunk_tokens=512,
    network=LinkCost(1e9, 1e-4),
)


class Worked:
    """A worker whose steps take `decode` and `prefill` times what is listed, some of them a lot
    longer (`outliers`), and what a gateway learns of it, second by second."""

    def __init__(self, seed: int, learning: Learning | None = None) -> None:
        self.chance = Random(seed)
        self.tally = StepTally(1)
        self.learned = LearnedCorrection(learning or Learning(), LISTED)
        self.learned.steps_reported((), 0)
        self.now_ns = 0

    def run(
        self, seconds: int, decode: float, prefill: float, outliers: float = 0.0
    ) -> list[Correction]:
        seen = []
        for _ in range(seconds):
            end_ns = self.now_ns + SECOND
            while self.now_ns < end_ns:
                self.step(decode, prefill, outliers)
            self.learned.steps_reported(self.tally.totals, self.now_ns)
            self.learned.revise()
            seen.append(self.learned.correction)
        return seen

    def step(self, decode: float, prefill: float, outliers: float) -> None:
        chance, began_ns = self.chance, self.now_ns
        starts = [chance.randrange(4000) for _ in range(chance.randint(1, 60))]
        counts = [1] * len(starts)
        if chance.random() < 0.3:
            # Whole chunks, and the short rests of prompts that were mostly cached.
            counts[0] = chance.choice([512, 512, 17, 90])
        work = work_of(starts, counts, len(starts))
        chunks = tuple((s, c) for s, c in zip(starts, counts, strict=True) if c > 1)
        shape = StepShape(chunks, work.decodes, work.context_tokens, work.sampled_rows)
        seconds = LISTED.step_time.seconds(shape) * (prefill if chunks else decode)
        seconds *= chance.uniform(0.95, 1.05) * (20 if chance.random() < outliers else 1)
        self.now_ns += round(seconds * 1e9)
        self.tally.step_landed(work, began_ns, self.now_ns)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_as_listed_is_left_alone(seed):
    assert set(Worked(seed).run(30, 1.0, 1.0)) == {UNCORRECTED}


@pytest.mark.parametrize(("seed", "factor"), list(enumerate([0.2, 0.5, 1.5, 2.0, 4.0, 7.5])))
def test_what_is_not_as_listed_is_found_in_seconds_and_does_not_swing(seed, factor):
    seen = Worked(seed).run(40, factor, 1.0)
    assert seen[20].decode == pytest.approx(factor, rel=0.11)
    assert len({each.decode for each in seen[12:]}) <= 2
    assert {each.prefill for each in seen} == {1.0}
    seen = Worked(seed).run(40, 1.0, factor)
    assert seen[30].prefill == pytest.approx(factor, rel=0.11)


def test_bounds_hold_whatever_is_measured():
    learning = Learning(most_factor=3.0)
    for factor, bound in ((100.0, 3.0), (0.1, 1 / 3)):
        worked = Worked(1, learning)
        seen = worked.run(200 if factor > 1 else 12, factor, factor)
        assert seen[-1].decode == pytest.approx(bound)
        assert all(1 / 3 - 1e-9 <= each.decode <= 3 for each in seen)


def test_outliers_change_nothing_that_lasts():
    recent = RecentMeasurements(WINDOW // 2)
    for _ in range(WINDOW):
        recent.add(0.0, 60e9, 0)
    for _ in range(WINDOW // 2):
        recent.add(10.0, 60e9, 0)
    assert recent.value == 0.0
    recent.add(10.0, 60e9, 0)
    assert recent.value == 10.0


def test_what_is_not_measured_any_more_heals_and_is_not_taken_up_at_once_again():
    worked = Worked(3)
    worked.run(20, 4.0, 1.0)
    learned = worked.learned
    assert learned.correction.decode == pytest.approx(4.0, rel=0.1)
    factors = []
    for _ in range(120):
        worked.now_ns += 5 * SECOND
        learned.fade(worked.now_ns)
        learned.revise()
        factors.append(learned.correction.decode)
    assert factors == sorted(factors, reverse=True)
    assert factors[13] == pytest.approx(2.0, rel=0.15)
    assert factors[-1] == 1.0
    # It was throttled only for a while: one look at it shows that.
    assert {each.decode for each in worked.run(5, 1.0, 1.0)} == {1.0}


def test_steps_of_a_pipeline_overlap_and_are_not_compared():
    tally = StepTally(2)
    tally.step_landed(StepWork(0, 0, 0, 1, 5, 1), 0, 10)
    assert tally.totals == ()


def test_kept_drafts_are_steps_saved_and_prompts_are_left_out_of_it():
    """Rows of three drafts of which two are kept each time; a step takes as long as the list says
    of a plain one, so that a token takes a third of it."""
    learned, tally, now_ns = LearnedCorrection(Learning(), LISTED), StepTally(1), 0
    starts, counts = [1000, 2000], [4, 4]
    listed_s = LISTED.step_time.decode_seconds(2, 3002)
    for _ in range(2 * WINDOW):
        for _ in range(20):
            work = work_of(starts, counts, sampled_rows=8, drafts=6)
            began_ns, now_ns = now_ns, now_ns + round(listed_s * 1e9)
            tally.step_landed(work, began_ns, now_ns, kept_drafts=4)
        learned.steps_reported(tally.totals, now_ns)
        learned.revise()
    assert (work.chunks, work.decodes, work.sampled_rows) == (0, 2, 2)
    assert learned.correction.decode == pytest.approx(1 / 3, rel=0.06)
    assert learned.correction.prefill == 1.0


def fleet_costs(*workers: str, learning: Learning | None = None) -> MeasuredCosts:
    costs = MeasuredCosts(lambda _: Capacity(LISTED, 16, 100, 8), learning)
    for worker in workers:
        costs.joined(register(worker))
    return costs


def moved(seconds: float, moved_bytes: int = 1_000_000) -> MoveReport:
    return MoveReport(True, "shm", moved_bytes, 1, seconds)


def test_the_slow_end_of_transfers_is_found_and_nobody_else_is_blamed():
    costs = fleet_costs("source", "slow", "well", learning=Learning())
    listed_s = LISTED.network.seconds(1_000_000)
    for turn in range(40):
        target = ("slow", "well")[turn % 2]
        seconds = listed_s * (6.0 if target == "slow" else 1.05)
        costs.transfer_measured("source", target, moved(seconds), 1.0, turn)
    assert costs.correction("slow").network == pytest.approx(6.0, rel=0.35)
    assert costs.correction("source") == costs.correction("well") == UNCORRECTED
    slow = costs.capacities["slow"].cost
    assert slow.network.seconds(1e6) > 4 * costs.capacities["well"].cost.network.seconds(1e6)
    # A good link shows at once.
    for turn in range(WINDOW):
        costs.transfer_measured("source", "slow", moved(listed_s), 1.0, 40 + turn)
    assert costs.correction("slow") == UNCORRECTED


def test_what_contention_explains_is_no_slow_link():
    costs = fleet_costs("source", "target", learning=Learning())
    listed_s = LISTED.network.seconds(1_000_000)
    for turn in range(100):
        assert not costs.transfer_measured("source", "target", moved(5 * listed_s), 5.0, turn)


def test_transfers_that_share_a_link_are_counted_over_time():
    links = LinkUses()
    links.transfer_began(1, "a", "b", 0)
    links.transfer_began(2, "a", "c", 50)
    assert links.transfer_over(2, 100) == pytest.approx(2.0)
    assert links.transfer_over(1, 100) == pytest.approx(1.5)
    assert links.transfer_over(1, 100) is None
    assert not links.under_way


def test_without_learning_nothing_is_corrected():
    costs = fleet_costs("source", "target")
    for turn in range(50):
        assert not costs.transfer_measured("source", "target", moved(1.0), 1.0, turn)
        assert costs.first_token_late("source", 0.5, turn) is None
    assert costs.capacities["source"].cost.correction == UNCORRECTED


def test_first_tokens_are_late_by_the_middle_of_what_was_seen():
    costs = fleet_costs("w", learning=Learning(most_late_s=0.1))
    chance = Random(2)
    for turn in range(20):
        costs.first_token_late("w", chance.choice([0.014, 0.015, 0.016, 0.4, 0.0]), turn)
    assert costs.correction("w").first_token_s == pytest.approx(0.015, rel=0.3)
    for turn in range(20):
        costs.first_token_late("w", 3.0, turn)
    assert costs.correction("w").first_token_s == pytest.approx(0.1)
    for turn in range(20):
        costs.first_token_late("w", -3.0, turn)
    assert costs.correction("w") == UNCORRECTED


def test_what_was_learnt_belongs_to_one_start_of_a_process():
    costs = fleet_costs("w", learning=Learning())
    for turn in range(20):
        costs.first_token_late("w", 0.02, turn)
    costs.joined(register("w"))
    assert costs.correction("w").first_token_s == pytest.approx(0.02)
    costs.joined(register("w", incarnation="2"))
    assert costs.correction("w") == UNCORRECTED


def test_a_tier_is_compared_with_computing_as_it_is_measured():
    costs = fleet_costs("w", learning=Learning())
    figures = TierFigures(Tier.HOST, True, 0, 10, fetch_s_per_token=1e-6, compute_s_per_token=1e-4)
    costs.reported("w", (figures,))
    listed_s = costs.capacities["w"].cost.pull_seconds(Tier.HOST, 1000)
    worked = Worked(4)
    for _ in range(20):
        worked.run(1, 4.0, 4.0)
        costs.steps_reported("w", worked.tally.totals, worked.now_ns)
    assert costs.correction("w").prefill == pytest.approx(4.0, rel=0.1)
    pull_s = costs.capacities["w"].cost.pull_seconds(Tier.HOST, 1000)
    assert pull_s == pytest.approx(4 * listed_s, rel=0.3)


@pytest.mark.parametrize("seed", range(20))
def test_absurd_totals_of_a_worker_do_no_harm(seed):
    chance = Random(seed)
    learned = LearnedCorrection(Learning(), LISTED)
    for turn in range(30):
        counts = [chance.choice([0, 1, 5, 1 << 20, (1 << 62) - 1]) for _ in range(8)]
        totals = (StepTotals(chance.random() < 0.5, 3, *counts),)
        learned.steps_reported(totals, turn * SECOND)
        learned.revise()
        assert 1 / 8 <= learned.correction.decode <= 8
        assert 1 / 8 <= learned.correction.prefill <= 8


def test_the_first_look_at_a_worker_says_nothing_of_its_steps():
    """A gateway that starts anew finds what others have seen."""
    learned, worked = LearnedCorrection(Learning(), LISTED), Worked(7)
    for look in range(WINDOW // 2 + 2):
        assert learned.correction == UNCORRECTED
        worked.run(1, 4.0, 4.0)
        learned.steps_reported(worked.tally.totals, look)
        learned.revise()
    assert learned.correction.decode == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("how", ["gone", "long ago"])
def test_who_was_quick_with_a_peer_is_the_slow_end_once_that_peer_says_nothing_any_more(how):
    costs = fleet_costs("source", "target", "well", learning=Learning())
    listed_s = LISTED.network.seconds(1_000_000)
    costs.transfer_measured("source", "well", moved(listed_s), 1.0, 0)

    def slow(now_ns: int) -> float:
        for _ in range(WINDOW):
            costs.transfer_measured("source", "target", moved(6 * listed_s), 1.0, now_ns)
        return costs.correction("source").network

    assert slow(SECOND) == 1.0
    if how == "gone":
        costs.left("well")
    now_ns = SECOND if how == "gone" else KEPT_A_PEER_NS + 1
    assert slow(now_ns) == pytest.approx(6.0, rel=0.35)


def test_a_correction_reaches_its_bound_from_the_step_below():
    worked = Worked(8, Learning(most_factor=3.0))
    assert worked.run(20, 2.83, 1.0)[-1].decode == pytest.approx(2.83, rel=0.01)
    assert worked.run(20, 6.0, 1.0)[-1].decode == 3.0
