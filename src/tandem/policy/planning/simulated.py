"""Shapes tried in a simulator: which ones a planner asks about, when, and what it makes of the
answer.

The analytic planner knows formulas of two pools apart; the simulator knows queues, prefix hits,
transfers and the router's choices. A change is made only where its gain is clear in what the
recorded requests would have got, and lasts long enough to pay for the change itself.
"""

from dataclasses import dataclass, field

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.facts.shapes import ShapeFigures
from tandem.policy.planning.contract import Answer, FleetView, Flip, Plan, Question
from tandem.policy.planning.pools import (
    Sizes,
    in_change,
    last_seconds,
    movable,
    pool,
    present,
    quietest,
    within_bounds,
)

MOST_SHAPES = 6
# With fewer requests a share says nothing.
LEAST_REQUESTS = 32
# A question whose answer changed nothing is asked again only so many periods later, while nobody
# is late and the formulas want no change.
CALM_PERIODS = 5
# A rate that is no more than this share above one that was tried is covered by the answer.
COVERED = 1.1
# Shapes that lose no more than this share of requests serve as well.
AS_GOOD = 0.01
# Where the simulator's share for the present fleet is so far from the measured one, it is wrong.
CREDIBLE = 0.4


@dataclass(frozen=True, slots=True)
class Simulation:
    """How shapes are tried: with up to `requests` of the last `window_s`, at most once in
    `period_s`, for `cpu_s` seconds of a processor and `limit_s` by the clock. A flip or a start
    must let at least `gain` more of the requests keep their SLO."""

    window_s: float = 600.0
    period_s: float = 60.0
    requests: int = 200
    cpu_s: float = 8.0
    limit_s: float = 30.0
    gain: float = 0.05

    def __post_init__(self) -> None:
        for name, least, most in (
            ("window_s", 30.0, 3600.0),
            ("period_s", 5.0, 86_400.0),
            ("requests", 32, 4096),
            ("cpu_s", 0.1, 600.0),
            ("limit_s", 1.0, 600.0),
            ("gain", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidConfiguration(
                    f"{name.removesuffix('_s')} of the planner's simulation is {value:g}; choose "
                    f"{least:g} to {most:g}"
                )


@dataclass(frozen=True, slots=True)
class Wish:
    """What the formulas make of the same view: the sizes that `rate_per_s` requests a second need,
    the plan that they would carry out, whether workers may leave or flip by now (`calm`), and what
    the pools can spare at once by their present load."""

    need: Sizes
    plan: Plan
    rate_per_s: float
    calm: bool
    surplus: Sizes

    @property
    def sizes(self) -> Sizes:
        """Of the plan."""
        assert self.plan.prefill is not None
        assert self.plan.decode is not None
        return Sizes(self.plan.prefill, self.plan.decode)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the sizes that its plans come to, the present ones first."""

    question: Question
    sizes: tuple[Sizes, ...]
    at_ns: int


@dataclass(slots=True)
class ShapeTrials:
    """Decides with the simulator's answers, and asks; `attainment` is the share of requests that is
    to keep the SLO. `settle_s` is how long a change is left to show what it does."""

    options: Simulation
    attainment: float
    settle_s: float
    _asked: Asked | None = field(default=None, init=False)
    _taken: int = field(default=0, init=False)
    # The rate at which the present sizes were last found good enough, and when.
    _kept: tuple[Sizes, float, int] | None = field(default=None, init=False)
    # A smaller fleet that did as well in the last answer: it leaves when the next one says so too.
    _smaller: Sizes | None = field(default=None, init=False)
    _verdict: str = field(default="", init=False)
    _answered: bool = field(default=True, init=False)

    def plan(self, fleet: FleetView, wish: Wish, now_ns: int) -> Plan:
        """The plan of the formulas, as far as the simulator agrees or does not know better."""
        have, asked, answer = present(fleet), self._asked, fleet.answer
        reason = wish.plan.reason
        if asked is not None and asked.question.serial != self._taken:
            if answer is None or answer.serial != asked.question.serial:
                return _unchanged(have, f"{reason}; the simulator is being asked")
            self._taken = answer.serial
            return self._decide(fleet, wish, asked, answer, now_ns)
        if self._is_due(fleet, wish, now_ns):
            return self._ask(fleet, wish, now_ns)
        if not self._answered:
            return _because(wish.plan, f"{reason} ({self._verdict})")
        if wish.sizes.total > have.total and not self._covers(have, wish, now_ns):
            # Whoever waits for an answer may be late; what is too much goes again.
            return wish.plan
        return _unchanged(have, f"{reason}; {self._verdict}" if self._verdict else reason)

    def _is_due(self, fleet: FleetView, wish: Wish, now_ns: int) -> bool:
        recent = last_seconds(fleet.windows, self.options.window_s)
        if in_change(fleet) or sum(window.requests for window in recent) < LEAST_REQUESTS:
            # What would be tried is not there, or says nothing.
            return False
        if self._asked is None:
            return True
        since_s = (now_ns - self._asked.at_ns) / 1e9
        if since_s < self.options.period_s:
            return False
        have = present(fleet)
        is_calm = wish.need == have and wish.sizes == have and self._covers(have, wish, now_ns)
        return not is_calm or since_s >= CALM_PERIODS * self.options.period_s

    def _covers(self, have: Sizes, wish: Wish, now_ns: int) -> bool:
        """Whether the present fleet was lately found good enough for the rate ahead."""
        if self._kept is None:
            return False
        sizes, rate_per_s, at_ns = self._kept
        recent = now_ns - at_ns <= round(2 * CALM_PERIODS * self.options.period_s * 1e9)
        return sizes == have and recent and wish.rate_per_s <= COVERED * rate_per_s

    def _ask(self, fleet: FleetView, wish: Wish, now_ns: int) -> Plan:
        have, options = present(fleet), self.options
        sizes = _candidates(fleet, have, wish)
        plans = tuple(towards(each, fleet) for each in sizes)
        question = Question(
            serial=self._taken + 1,
            plans=plans,
            window_s=options.window_s,
            requests=options.requests,
            rate_per_s=wish.rate_per_s,
            cpu_s=options.cpu_s,
            limit_s=options.limit_s,
        )
        self._asked = Asked(question, sizes, now_ns)
        asking = f"{wish.plan.reason}; the simulator is asked"
        return Plan(have.prefill, have.decode, reason=asking, question=question)

    def _decide(
        self, fleet: FleetView, wish: Wish, asked: Asked, answer: Answer, now_ns: int
    ) -> Plan:
        have, before = present(fleet), asked.sizes[0]
        # There are none where there was a problem.
        answered = answer.figures or (None,) * len(asked.sizes)
        tried = {
            sizes: figures
            for sizes, figures in zip(asked.sizes, answered, strict=True)
            if figures is not None
        }
        smaller, self._smaller, self._kept = self._smaller, None, None
        problem = answer.problem or _incredible(tried.get(before), answer)
        if problem or before not in tried:
            self._answered = False
            self._verdict = f"without the simulator: {problem or 'it had no time'}"
            return _because(wish.plan, f"{wish.plan.reason} ({self._verdict})")
        self._answered = True
        if have != before or in_change(fleet):
            self._verdict = ""
            return _unchanged(
                have, f"{wish.plan.reason}; the fleet has changed since it was simulated"
            )
        now = tried[have]
        best = self._best(tried, have)
        self._verdict = _sentence(best, have, tried, answer)
        if now.kept >= self.attainment:
            self._kept = (have, wish.rate_per_s, now_ns)
            if best == have:
                return _unchanged(have, self._verdict)
            self._smaller = best
            sure = smaller == best and wish.calm and _spared(wish.surplus, have, best)
            return towards(best, fleet, self._verdict) if sure else _unchanged(have, self._verdict)
        if not self._pays(tried[best].kept - now.kept, now, have, best, fleet):
            return _unchanged(have, f"{self._verdict}, too little for a change")
        if best.total <= have.total and not wish.calm:
            return _unchanged(have, f"{self._verdict}, but the last change was a moment ago")
        return towards(best, fleet, self._verdict)

    def _best(self, tried: dict[Sizes, ShapeFigures], have: Sizes) -> Sizes:
        """The cheapest that keeps the SLO, else the one that keeps it most; of equals the present
        one, then the one with the fewest changes."""

        def changes(sizes: Sizes) -> int:
            return abs(sizes.prefill - have.prefill) + abs(sizes.decode - have.decode)

        least = self.attainment
        if tried[have].kept >= least:
            least = max(least, tried[have].kept - AS_GOOD)
        good = [sizes for sizes, figures in tried.items() if figures.kept >= least]
        if good:
            return min(good, key=lambda sizes: (sizes.total, changes(sizes), -tried[sizes].kept))
        most = max(figures.kept for figures in tried.values())
        close = [sizes for sizes, figures in tried.items() if figures.kept >= most - AS_GOOD]
        return min(close, key=lambda sizes: (sizes.total, changes(sizes), -tried[sizes].kept))

    def _pays(
        self, gain: float, now: ShapeFigures, have: Sizes, best: Sizes, fleet: FleetView
    ) -> bool:
        """Whether requests won until the next change may come are more than those lost while
        workers flip."""
        if best == have or gain < self.options.gain:
            return False
        flips = min(abs(best.prefill - have.prefill), abs(best.decode - have.decode))
        lost = flips / have.total * fleet.drain_s * now.kept
        return gain * self.settle_s >= lost


def towards(sizes: Sizes, fleet: FleetView, reason: str = "") -> Plan:
    """From the present fleet to these sizes: what one pool gives up and the other lacks flips, the
    quietest first; the rest starts or goes."""
    have = present(fleet)
    gives = Role.PREFILL if sizes.prefill < have.prefill else Role.DECODE
    takes = Role.DECODE if gives is Role.PREFILL else Role.PREFILL
    change = Sizes(sizes.prefill - have.prefill, sizes.decode - have.decode)
    count = (
        min(abs(change.prefill), abs(change.decode)) if change.prefill * change.decode < 0 else 0
    )
    there = pool(fleet, gives)
    flipping = quietest(movable(there, fleet))[: min(count, max(0, len(there) - 1))]
    flips = tuple(Flip(view.worker, takes.value) for view in flipping)
    return Plan(sizes.prefill, sizes.decode, flips=flips, reason=reason)


def _candidates(fleet: FleetView, have: Sizes, wish: Wish) -> tuple[Sizes, ...]:
    """The present sizes, those that the formulas want, and the neighbours: few, for each costs a
    simulation."""
    short = wish.need.total > have.total or _late(fleet)
    step = 1 if short else -1
    near = [
        wish.need,
        wish.sizes,
        Sizes(have.prefill + 1, have.decode - 1),
        Sizes(have.prefill - 1, have.decode + 1),
        Sizes(have.prefill + step, have.decode),
        Sizes(have.prefill, have.decode + step),
        # A load that has turned over needs more than one.
        Sizes(have.prefill + 2, have.decode - 2),
        Sizes(have.prefill - 2, have.decode + 2),
    ]
    possible = [each for each in near if each == within_bounds(each, fleet)]
    return tuple(dict.fromkeys([have, *possible]))[:MOST_SHAPES]


def _late(fleet: FleetView) -> bool:
    """Whether many of the last window's answers broke their SLO."""
    window = fleet.windows[-1]
    for measured, bound in ((window.ttft_s, fleet.slo.ttft_s), (window.tpot_s, fleet.slo.tpot_s)):
        if bound is not None and sum(each > bound for each in measured) > len(measured) / 20:
            return True
    return False


def _spared(surplus: Sizes, have: Sizes, fewer: Sizes) -> bool:
    """Whether what runs right now fits on the rest."""
    return (
        have.prefill - fewer.prefill <= surplus.prefill
        and have.decode - fewer.decode <= surplus.decode
    )


def _incredible(figures: ShapeFigures | None, answer: Answer) -> str:
    """Why the simulator is not to be believed; empty where nothing speaks against it."""
    if figures is None or answer.measured is None or not 0.8 <= answer.speed <= 1.25:
        return ""
    if abs(figures.kept - answer.measured) <= CREDIBLE:
        return ""
    return (
        f"by it {figures.kept:.0%} would have kept the SLO, and {answer.measured:.0%} did; its "
        "costs are wrong for these workers"
    )


def _sentence(best: Sizes, have: Sizes, tried: dict[Sizes, ShapeFigures], answer: Answer) -> str:
    pace = "" if 0.95 <= answer.speed <= 1.05 else f" at {answer.speed:.2g}x their rate"
    past = f"of the last {answer.requests} requests ({_seconds(answer.seconds)}){pace}"
    if best == have:
        return f"{have} would have kept {tried[have].kept:.0%} {past}"
    return f"{best} would have kept {tried[best].kept:.0%} {past}, {have} {tried[have].kept:.0%}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _unchanged(have: Sizes, reason: str) -> Plan:
    return Plan(have.prefill, have.decode, reason=reason)


def _because(plan: Plan, reason: str) -> Plan:
    return Plan(plan.prefill, plan.decode, flips=plan.flips, moves=plan.moves, reason=reason)
