"""Circuit breakers of the router, one a service class: what was measured of the requests that were
admitted, and what may be promised to the next ones.

When a class misses its SLO, or is refused while less urgent classes are served, the least urgent
class that asks gives way first, and the class itself last. Classes that share no workers have
nothing to do with each other.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from msgspec import structs

from tandem.facts.slo import Slo
from tandem.messages.gateway import BreakerStatus
from tandem.policy.admission.breaker import (
    BOTH,
    CLOSED,
    Breaker,
    BreakerStage,
    BreakerTerms,
    Broken,
    Measure,
    exhausted,
    relaxed,
    tightened,
)
from tandem.policy.admission.contract import Verdict
from tandem.policy.admission.tail import SlidingSum, SlidingTail
from tandem.policy.qos.classes import Classes
from tandem.policy.views import RequestView

# How a request that was refused, or not, counts in the tail of refusals.
_REFUSED, _ADMITTED = 2.0, 0.5
# Nobody knows how late a first token would have been that was not in time: so many times as long.
_LATE = 2.0


@dataclass(slots=True)
class _OfClass:
    """One class: its breaker, and shares of its SLO as measured. Requests that arrived before
    `since_ns` were admitted on other terms and do not count. `prefill_s` is for how long its
    prompts keep all workers together; `left` is the share of time that more urgent classes left to
    its newest request."""

    name: str
    priority: int
    ttft: SlidingTail
    tpot: SlidingTail
    refused: SlidingTail
    prefill_s: SlidingSum
    breaker: Breaker = CLOSED
    slo: Slo = field(default_factory=Slo)
    since_ns: int = 0
    known_since_ns: int = 0
    asked_ns: int = 0
    credit: float = 0.0
    left: float = 1.0
    opened: int = 0

    def measure_anew(self, now_ns: int) -> None:
        """What was measured so far says nothing of the terms from now on."""
        self.since_ns = now_ns
        for tail in (self.ttft, self.tpot, self.refused):
            tail.clear()

    def change(self, breaker: Breaker) -> None:
        opens = breaker.stage is BreakerStage.OPEN and self.breaker.stage is BreakerStage.CLOSED
        self.opened += opens
        self.breaker = breaker


class Breakers:
    """Those of all classes that have asked. What is kept is bounded by the number of classes.
    `share_workers` is whether requests of two classes may go to the same workers now."""

    def __init__(
        self, terms: BreakerTerms, classes: Classes, share_workers: Callable[[str, str], bool]
    ) -> None:
        self.terms = terms
        self.classes = classes
        self._share_workers = share_workers
        self._of: dict[str, _OfClass] = {}
        # The most urgent first; of equal ones by name.
        self._order: list[_OfClass] = []
        self._look_at_ns = 0

    def hold_for(self, terms: BreakerTerms | None, classes: Classes) -> bool:
        """Whether what was measured is of the promises that these make, too. Which tenant is of
        which class is no promise."""
        return terms == self.terms and _promises(classes) == _promises(self.classes)

    @property
    def several_classes(self) -> bool:
        """Whether more than one class has asked so far."""
        return len(self._order) > 1

    def promised(self, view: RequestView, now_ns: int) -> RequestView:
        """The request with the SLO that may be promised to it now: a share of its own, less what
        more urgent classes take meanwhile and, for the time between tokens, nothing that they would
        miss beside it."""
        own = self._asks(view, now_ns)
        if now_ns >= self._look_at_ns:
            self._look(now_ns)
        breaker, slo = own.breaker, view.slo
        tpot_s = slo.tpot_s
        urgent_share = 0.0
        for other in self._order:
            if other.priority >= own.priority:
                break
            if not self._share_workers(own.name, other.name):
                continue
            urgent_share += other.prefill_s.per_second(now_ns, other.known_since_ns)
            if other.slo.tpot_s is not None and self._is_active(other, now_ns):
                tpot_s = min(tpot_s or other.slo.tpot_s, other.slo.tpot_s)
        own.left = 1.0
        if breaker.share == 1.0 and tpot_s == slo.tpot_s and not urgent_share:
            return view
        # While it waits more urgent ones come, and go before it: as many as came of late.
        own.left = max(self.terms.least_share, 1.0 - urgent_share)
        ttft_s = None if slo.ttft_s is None else breaker.ttft_share * own.left * slo.ttft_s
        tpot_s = None if tpot_s is None else breaker.tpot_share * tpot_s
        return structs.replace(view, slo=replace(slo, ttft_s=ttft_s, tpot_s=tpot_s))

    def within_load(self, view: RequestView, verdict: Verdict) -> Verdict:
        """The verdict on a request (and then perhaps on what is left of it when it is shortened),
        for a class without an SLO by the share of its load that is given out."""
        own = self._of[view.service_class]
        share, typical_tokens = own.breaker.share, view.typical_output_tokens
        if share == 1.0 or not view.slo.empty:
            return verdict
        load = 1.0
        if typical_tokens:
            left_tokens = view.prompt_tokens + view.expected_output_tokens
            load = min(1.0, left_tokens / (view.prompt_tokens + typical_tokens))
        else:
            own.credit = min(1.0, own.credit) + share
        if not verdict.admitted:
            return verdict
        if own.credit < load:
            # As with what no idle worker could do, nobody below is to give way for it.
            reason = "its requests have had their share of it"
            return Verdict(False, reason, self.terms.window_s, feasible=False)
        own.credit -= load
        return verdict

    def settled(
        self, view: RequestView, verdict: Verdict, now_ns: int, whole: Verdict | None = None
    ) -> Verdict:
        """The last verdict on what may be promised, with the breaker's reason where it is not
        closed. Before the request was shortened it was `whole`: one that was refused then, others
        are to give way for."""
        own, terms = self._of[view.service_class], self.terms
        breaker, whole = own.breaker, whole or verdict
        if whole.feasible:
            own.refused.add(_ADMITTED if whole.admitted else _REFUSED, now_ns)
        if verdict.admitted or (breaker.share == 1.0 and own.left == 1.0):
            return verdict
        reason = verdict.reason
        if own.left < 1.0:
            reason += f"; more urgent classes take {1.0 - own.left:.0%} of the prefill meanwhile"
        if breaker.share < 1.0:
            given = "load" if view.slo.empty else "SLO"
            words = f"{breaker.cause}; {breaker.share:.0%} of its {given} is given out: {reason}"
            reason = self._worded(own, words)
        # What an idle worker could not keep is asked again once more is given out.
        retry_s = verdict.retry_after_s if verdict.feasible else terms.window_s
        return replace(verdict, reason=reason, retry_after_s=retry_s)

    def prefills(self, view: RequestView, seconds: float, now_ns: int) -> None:
        """A request was admitted whose prompt keeps all workers together for so long."""
        self._of[view.service_class].prefill_s.add(seconds, now_ns)

    def first_token(self, view: RequestView, now_ns: int) -> None:
        """An admitted request got its first token now."""
        self._add_ttft(view, now_ns - view.arrival_ns, now_ns)

    def no_first_token(self, view: RequestView, now_ns: int) -> None:
        """The deadline of an admitted request ended it before its first token: a miss, unless its
        client wanted that far sooner than its class promises."""
        if view.deadline_ns is not None:
            self._add_ttft(view, _LATE * (view.deadline_ns - view.arrival_ns), now_ns)

    def later_tokens(self, view: RequestView, first_ns: int, tokens: int, now_ns: int) -> None:
        """An admitted request has `tokens` by now, the first since `first_ns`."""
        own = self._of.get(view.service_class)
        if own is None or tokens < 2 or view.arrival_ns < own.since_ns or not view.slo.tpot_s:
            return
        own.tpot.add((now_ns - first_ns) / 1e9 / (tokens - 1) / view.slo.tpot_s, now_ns)

    def status(self) -> tuple[BreakerStatus, ...]:
        """The most urgent class first."""
        return tuple(
            BreakerStatus(
                each.name,
                each.breaker.stage.value,
                each.breaker.share,
                each.opened,
                each.breaker.cause,
            )
            for each in self._order
        )

    def _asks(self, view: RequestView, now_ns: int) -> _OfClass:
        name = view.service_class
        own = self._of.get(name)
        if own is None:
            priority, window_ns = self.classes.named(name).priority, self.terms.window_ns
            tails = (SlidingTail(window_ns), SlidingTail(window_ns), SlidingTail(window_ns))
            busy = SlidingSum(window_ns)
            own = self._of[name] = _OfClass(
                name, priority, *tails, busy, since_ns=now_ns, known_since_ns=now_ns
            )
            self._order = sorted(self._of.values(), key=lambda each: (each.priority, each.name))
        own.asked_ns, own.slo = now_ns, view.slo
        return own

    def _add_ttft(self, view: RequestView, ttft_ns: float, now_ns: int) -> None:
        own = self._of.get(view.service_class)
        if own is not None and view.slo.ttft_s and view.arrival_ns >= own.since_ns:
            own.ttft.add(ttft_ns / 1e9 / view.slo.ttft_s, now_ns)

    def _is_active(self, each: _OfClass, now_ns: int) -> bool:
        return now_ns - each.asked_ns <= self.terms.window_ns

    def _look(self, now_ns: int) -> None:
        """Once a slice of the window, of classes that share workers: one at most gives way, or one
        gets some back, if its SLO and that of all more urgent ones holds."""
        self._look_at_ns = now_ns + round(self.terms.look_s * 1e9)
        short: list[_OfClass] = []
        for each in self._order:
            if self._shares(each, short):
                continue
            broken = self._late(each, now_ns)
            loser = None
            if broken is not None:
                loser = self._lower(each, broken, now_ns) or each
            elif (broken := self._refused(each, now_ns)) is not None:
                loser = self._lower(each, broken, now_ns)
            if broken is None or loser is None or exhausted(loser.breaker, broken, self.terms):
                continue
            loser.change(tightened(loser.breaker, broken, self.terms))
            each.measure_anew(now_ns)
            loser.measure_anew(now_ns)
            short += each, loser
        for each in self._order:
            if not self._shares(each, short) and self._holds(each, now_ns):
                if each.breaker.share == 1.0:
                    continue
                each.change(relaxed(each.breaker, self.terms))
            # The less urgent ones wait until this one has all of it.
            short.append(each)

    def _shares(self, one: _OfClass, others: Iterable[_OfClass]) -> bool:
        """Whether it may be at the workers of any of the others."""
        return any(self._share_workers(one.name, other.name) for other in others)

    def _late(self, each: _OfClass, now_ns: int) -> Broken | None:
        """The measure of a class whose tail is furthest beyond what it may be."""
        broken = [
            found
            for measure, tail in ((Measure.TTFT, each.ttft), (Measure.TPOT, each.tpot))
            if (found := self._worst(each, measure, tail, now_ns)).overshoot > 1.0
        ]
        return max(broken, key=lambda found: found.overshoot, default=None)

    def _worst(self, each: _OfClass, measure: Measure, tail: SlidingTail, now_ns: int) -> Broken:
        """The worse of both percentiles, broken or not."""
        terms, worst = self.terms, Broken((measure,), 0.0, "")
        if tail.count(now_ns) < terms.min_requests:
            return worst
        for words, share, bound in (
            ("p99", 0.99, terms.p99_share),
            ("p99.9", 0.999, terms.p999_share),
        ):
            found = tail.quantile(share, now_ns)
            if found / bound > worst.overshoot:
                cause = (
                    f"the {words} {measure.value}{_of(each)} was {found:.3g} times its SLO, "
                    "although it was predicted to hold"
                )
                worst = Broken((measure,), found / bound, cause)
        return worst

    def _refused(self, each: _OfClass, now_ns: int) -> Broken | None:
        """Whether requests of a class are refused, which is the fault of those below it."""
        if each.refused.count(now_ns) < self.terms.min_requests:
            return None
        overshoot = each.refused.quantile(0.99, now_ns)
        if overshoot <= 1.0:
            return None
        return Broken(BOTH, overshoot, f"requests{_of(each)} were refused")

    def _lower(self, harmed: _OfClass, broken: Broken, now_ns: int) -> _OfClass | None:
        """The least urgent class below it that asks and still has something to give."""
        for each in reversed(self._order):
            if each.priority <= harmed.priority:
                return None
            if not self._share_workers(each.name, harmed.name):
                continue
            if self._is_active(each, now_ns) and not exhausted(each.breaker, broken, self.terms):
                return each
        return None

    def _holds(self, each: _OfClass, now_ns: int) -> bool:
        """Whether what was measured since the terms changed is well within them. The first to be
        measured are the quickest, so a window must have passed; where nothing is measured by then,
        nothing is wrong."""
        if now_ns - each.since_ns < self.terms.window_ns:
            return each.breaker.stage is BreakerStage.CLOSED
        return all(
            self._worst(each, measure, tail, now_ns).overshoot <= self.terms.holds_share
            for measure, tail in ((Measure.TTFT, each.ttft), (Measure.TPOT, each.tpot))
        )

    @staticmethod
    def _worded(own: _OfClass, words: str) -> str:
        return f"the breaker{_of(own)} is {own.breaker.stage.value}: {words}"


def _promises(classes: Classes) -> dict[str, tuple[int, Slo, tuple[str, ...]]]:
    every = (classes.unnamed, *classes.classes)
    return {each.name: (each.priority, each.slo, each.pools) for each in every}


def _of(each: _OfClass) -> str:
    return f" of class {each.name}" if each.name else ""
