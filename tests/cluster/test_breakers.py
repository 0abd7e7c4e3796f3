"""Circuit breakers of the router: who gives way, how much, and when it is given back."""

import itertools
from dataclasses import replace

import pytest
from msgspec import structs

from tandem.cluster.router.breakers import Breakers
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo
from tandem.policy.admission.breaker import BreakerTerms
from tandem.policy.admission.contract import ADMITTED, Verdict
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.policy.views import RequestView

NS = 1_000_000_000
TERMS = BreakerTerms(window_s=6, min_requests=10, recovery_s=12)
CLASSES = Classes((ServiceClass("premium", priority=0), ServiceClass("free", priority=5)))
SLO = Slo(ttft_s=2.0, tpot_s=0.1)


class Traffic:
    """Ten requests a second of each class named, measured when their first token comes."""

    def __init__(
        self, *names: str, terms: BreakerTerms = TERMS, classes: Classes = CLASSES
    ) -> None:
        self.breakers = Breakers(terms, classes, classes.share_workers)
        self.names = names
        self.now_ns = 0
        self.coming: list[tuple[int, RequestView]] = []

    def view(self, name: str, slo: Slo = SLO) -> RequestView:
        return RequestView("r", 0, self.now_ns, 100, 10.0, service_class=name, slo=slo)

    def run(self, seconds: float, verdicts=None, **ttft_s: float) -> None:
        """Every request of a class takes so long to its first token, by class."""
        verdicts = verdicts or {}
        for _ in range(round(seconds * 10)):
            self.now_ns += NS // 10
            for name in self.names:
                view = self.view(name)
                self.breakers.promised(view, self.now_ns)
                self.breakers.settled(view, verdicts.get(name, ADMITTED), self.now_ns)
                first_ns = self.now_ns + round(ttft_s.get(name, 0.1) * 1e9)
                self.coming.append((first_ns, view))
            for _, view in [each for each in self.coming if each[0] <= self.now_ns]:
                self.breakers.first_token(view, self.now_ns)
            self.coming = [each for each in self.coming if each[0] > self.now_ns]

    def status(self) -> dict[str, tuple[str, float]]:
        return {each.service_class: (each.stage, each.share) for each in self.breakers.status()}

    def promised(self, name: str, slo: Slo = SLO) -> Slo:
        return self.breakers.promised(self.view(name, slo), self.now_ns).slo


def test_a_tail_within_the_slo_never_opens():
    at = Traffic("premium", "free")
    at.run(30, premium=1.9, free=1.9)
    assert at.status() == {"premium": ("closed", 1.0), "free": ("closed", 1.0)}
    assert at.promised("premium") == SLO


def test_the_lower_class_gives_way_before_the_one_that_is_late():
    at = Traffic("premium", "free")
    at.run(6, premium=3.0)
    stage, share = at.status()["free"]
    # By the overshoot, 3 s of 2 s, as the histogram rounds it.
    assert stage == "open"
    assert 0.6 < share < 0.7
    assert at.status()["premium"] == ("closed", 1.0)
    promised = at.promised("free")
    assert promised.ttft_s == pytest.approx(2.0 * share)
    # The time between tokens was not what was late.
    assert promised.tpot_s == 0.1
    at.run(60, premium=3.0)
    assert at.status()["free"] == ("open", TERMS.least_share)
    assert at.status()["premium"][0] == "open"


def test_a_late_class_without_a_lower_one_gives_way_itself_and_in_words():
    at = Traffic("premium")
    at.run(5, premium=2.5)
    stage, share = at.status()["premium"]
    assert stage == "open"
    refused = Verdict(False, "predicted TTFT 1.9 s exceeds 1.56 s: it is long", 0.3)
    verdict = at.breakers.settled(at.view("premium"), refused, at.now_ns)
    assert verdict.retry_after_s == 0.3
    assert verdict.reason == (
        "the breaker of class premium is open: the p99 TTFT of class premium was 1.28 times its "
        f"SLO, although it was predicted to hold; {share:.0%} of its SLO is given out: "
        "predicted TTFT 1.9 s exceeds 1.56 s: it is long"
    )


def test_refusals_of_a_class_are_the_fault_of_those_below_and_never_its_own():
    at = Traffic("premium", "free")
    refused = {"premium": Verdict(False, "worker d takes 8 sequences", 1.0)}
    at.run(5, refused)
    assert at.status()["free"][0] == "open"
    assert at.status()["premium"] == ("closed", 1.0)
    alone = Traffic("premium")
    alone.run(5, refused)
    assert alone.status()["premium"] == ("closed", 1.0)
    # What no idle worker could do is nobody's fault.
    never = Traffic("premium", "free")
    never.run(5, {"premium": Verdict(False, "a TTFT of 1 ms cannot hold", 60.0, feasible=False)})
    assert never.status()["free"] == ("closed", 1.0)


def test_who_is_shortened_is_not_admitted_in_full():
    full = Verdict(False, "worker d takes 8 sequences", 1.0)
    for whole, stage in ((full, "open"), (replace(full, feasible=False), "closed")):
        at = Traffic("premium", "free")
        for _ in range(50):
            at.now_ns += NS // 10
            for name in at.names:
                view = at.view(name)
                at.breakers.promised(view, at.now_ns)
                shortened = name == "premium"
                verdict = Verdict(True, full.reason) if shortened else ADMITTED
                at.breakers.settled(view, verdict, at.now_ns, whole if shortened else ADMITTED)
        # Who takes less than it asked for has less urgent ones give way, if that helps.
        assert at.status()["free"][0] == stage


def test_shortened_requests_take_less_of_the_load_that_is_given_out():
    at = Traffic("premium", "free")
    at.run(60, premium=3.0)
    _, share = at.status()["free"]
    assert share == TERMS.least_share
    whole = structs.replace(at.view("free", Slo()), expected_output_tokens=100.0)
    # 110 tokens of 200.
    shorter = structs.replace(whole, expected_output_tokens=10.0, typical_output_tokens=100.0)
    admitted = 0
    for _ in range(200):
        verdict = at.breakers.within_load(whole, ADMITTED)
        if not verdict.admitted:
            verdict = at.breakers.within_load(shorter, ADMITTED)
        admitted += verdict.admitted
    assert admitted == pytest.approx(200 * share * 200 / 110, abs=1)


def test_it_is_given_back_by_steps_and_only_while_the_tail_is_well_within():
    at = Traffic("premium")
    at.run(7, premium=4.0)
    _, opened = at.status()["premium"]
    # Kept, but only just: nothing is given back.
    at.coming = []
    at.run(5, premium=1.95)
    assert at.status()["premium"] == ("open", opened)
    at.run(9, premium=1.0)
    stage, share = at.status()["premium"]
    assert stage == "half-open"
    assert opened < share < 1.0
    at.run(30, premium=1.0)
    assert at.status()["premium"] == ("closed", 1.0)


def test_where_nothing_is_measured_any_more_it_probes():
    at = Traffic("premium")
    at.run(11, premium=8.0)
    assert at.status()["premium"][0] == "open"
    at.now_ns += 7 * NS
    at.promised("premium")
    assert at.status()["premium"][0] == "half-open"


def test_the_gap_that_a_more_urgent_class_was_sold_binds_whoever_decodes_beside_it():
    at = Traffic("premium", "free")
    at.run(1)
    slow = Slo(ttft_s=9.0, tpot_s=0.5)
    assert at.promised("free", slow) == Slo(ttft_s=9.0, tpot_s=0.1)
    assert at.promised("premium", slow) == slow
    # Nobody of that class asks any more.
    at.names = ("free",)
    at.run(8)
    assert at.promised("free", slow) == slow


def test_a_class_without_an_slo_gives_up_a_share_of_its_load():
    at = Traffic("premium", "free")
    at.run(6, premium=3.0)
    _, share = at.status()["free"]
    view = at.view("free", Slo())
    verdicts = [at.breakers.within_load(view, ADMITTED) for _ in range(100)]
    assert sum(each.admitted for each in verdicts) == pytest.approx(100 * share, abs=1)
    refused = next(each for each in verdicts if not each.admitted)
    verdict = at.breakers.settled(view, refused, at.now_ns)
    assert verdict.retry_after_s == TERMS.window_s
    assert verdict.reason.endswith(
        f"{share:.0%} of its load is given out: its requests have had their share of it"
    )
    # What there was no room for is not made up for later.
    for _ in range(100):
        at.breakers.within_load(view, refused)
    admitted = [at.breakers.within_load(view, ADMITTED).admitted for _ in range(10)]
    assert sum(admitted) <= 1 + 10 * share


@pytest.mark.parametrize("measured", ["first tokens", "gaps"])
def test_requests_of_before_the_change_say_nothing_of_the_terms_since(measured):
    at = Traffic("premium")
    before = at.view("premium")
    at.run(6, premium=3.0)
    stage, share = at.status()["premium"]
    assert stage == "open"
    at.coming = []
    for _ in range(50):
        if measured == "gaps":
            at.breakers.later_tokens(before, at.now_ns - 9 * NS, 2, at.now_ns)
        else:
            at.breakers.first_token(before, at.now_ns)
    at.run(4, premium=1.95)
    assert at.status()["premium"] == ("open", share)


def test_classes_that_share_no_workers_have_nothing_to_do_with_each_other():
    lane = ServiceClass("premium", priority=0, pools=("lane",))
    at = Traffic("premium", "free", classes=Classes((lane, *CLASSES.classes[1:])))
    at.run(6)
    at.breakers.prefills(at.view("premium"), 3.0, at.now_ns)
    slow = Slo(ttft_s=9.0, tpot_s=0.5)
    assert at.promised("free", slow) == slow
    # The other class's tokens are late all by themselves.
    at.run(6, premium=3.0)
    assert at.status() == {
        "premium": ("open", pytest.approx(0.65, abs=0.05)),
        "free": ("closed", 1),
    }
    at.run(60, premium=3.0, free=3.0)
    assert at.status() == dict.fromkeys(("premium", "free"), ("open", TERMS.least_share))
    # One gets back what it gave although the other is still late.
    at.run(20, premium=3.0)
    assert {name: stage for name, (stage, _) in at.status().items()} == {
        "premium": "open",
        "free": "half-open",
    }


@pytest.mark.parametrize(
    "wrong", [{"window_s": 0}, {"min_requests": 1}, {"least_share": 0}, {"holds_share": 1.5}]
)
def test_terms_that_mean_nothing_are_refused(wrong):
    with pytest.raises(InvalidConfiguration, match=next(iter(wrong))):
        BreakerTerms(**wrong)


def test_a_thousandth_that_is_very_late_opens_though_the_hundredth_is_not():
    for late_s, stage in ((2.8, "closed"), (4.0, "open")):
        at = Traffic("premium")
        at.run(1)
        view = at.view("premium")
        for number in range(300):
            took_s = late_s if number >= 297 else 1.0
            at.breakers.first_token(view, view.arrival_ns + round(took_s * NS))
        at.now_ns += 5 * NS
        at.promised("premium")
        (status,) = at.breakers.status()
        assert status.stage == stage
    assert "the p99.9 TTFT of class premium was 2" in status.cause


def test_what_more_urgent_classes_take_meanwhile_is_not_promised():
    at = Traffic("premium", "free")
    at.run(6)
    at.breakers.prefills(at.view("premium"), 3.0, at.now_ns)
    # Three seconds of the five in the window's full slices.
    assert at.promised("free") == Slo(ttft_s=0.8, tpot_s=0.1)
    refused = Verdict(False, "predicted TTFT 1.9 s exceeds 1 s: it is long", 0.3)
    verdict = at.breakers.settled(at.view("free"), refused, at.now_ns)
    assert verdict.reason.endswith("; more urgent classes take 60% of the prefill meanwhile")
    assert at.promised("premium") == SLO
    at.breakers.prefills(at.view("premium"), 9.0, at.now_ns)
    assert at.promised("free").ttft_s == pytest.approx(2.0 * TERMS.least_share)


def test_what_a_class_that_came_just_now_takes_counts_in_full():
    at = Traffic("free", "premium")
    at.names = ("free",)
    at.run(20)
    at.promised("premium")
    at.breakers.prefills(at.view("premium"), 1.0, at.now_ns)
    at.now_ns += 2 * NS
    # One second of two, not of the window's six.
    assert at.promised("free").ttft_s == pytest.approx(1.0)


def test_a_lower_class_that_does_not_ask_any_more_has_nothing_to_give():
    at = Traffic("premium", "free")
    at.run(1)
    at.names = ("premium",)
    at.run(8)
    at.run(6, premium=3.0)
    assert at.status()["free"] == ("closed", 1.0)
    assert at.status()["premium"][0] == "open"


def test_a_tail_that_is_very_late_halves_the_share_at_most():
    at = Traffic("premium")
    at.run(1)
    view = at.view("premium")
    at.now_ns += 60 * NS
    for _ in range(10):
        at.breakers.first_token(view, at.now_ns)
    at.promised("premium")
    assert at.status()["premium"] == ("open", 0.5)


def test_steps_are_smaller_near_what_was_too_much():
    at = Traffic("premium")
    shares = [1.0]
    while len(shares) < 3:
        at.run(0.1, premium=3.0)
        if (share := at.status()["premium"][1]) != shares[-1]:
            shares.append(share)
    _, broke_at, least = shares
    at.coming = []
    taken = [least]
    for _ in range(200):
        at.run(0.1)
        if (share := at.status()["premium"][1]) != taken[-1]:
            taken.append(share)
    step = (1.0 - TERMS.least_share) * TERMS.look_s / TERMS.recovery_s
    for before, after in itertools.pairwise(taken):
        near = before > 0.85 * broke_at
        assert after - before == pytest.approx(0.2 * step if near else step)
    assert taken[-1] > broke_at
