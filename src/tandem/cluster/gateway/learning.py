"""How far each worker is from its listed costs: measured seconds of its steps, of its KV transfers
and of its first tokens, beside what its cost model says of the very same work.

A step is compared with the model at its own size, so a worker is not taken for slow because it is
busy, and what is learnt does not swing with the load. What contention may explain is no evidence.
"""

from collections import deque
from collections.abc import Iterable
from math import log2

from tandem.cost.worker import StepShape, StepTime, WorkerCost
from tandem.facts.correction import Correction
from tandem.facts.step_totals import StepTotals
from tandem.policy.learning import Learning

# The last so many measurements count; of steps and first tokens the middle one. Four of nine that
# are out of the way change nothing.
WINDOW = 9
MIDDLE = WINDOW // 2
# A transfer takes as long as the slower end: who is quick with one peer is not the slow one.
QUICK = 1
# So many with each peer tell who is.
KEPT_A_PEER = 3
KEPT_A_PEER_NS = 30_000_000_000
# Traffic that this gateway does not know of may take so much, as a logarithm of base 2: a quarter.
UNKNOWN_TRAFFIC = 0.32
# One measurement of steps is of so many, or of so much time.
LEAST_STEPS = 4
LEAST_STEPS_S = 0.1
# Without measurements for so long, a correction begins to fade.
GRACE_NS = 10_000_000_000
# Factors are powers of 2^(1/8), and stay until the measured one is three quarters of that away: up
# to 6 % from the list nothing is corrected, and noise makes no new prices.
STEPS_A_DOUBLING = 8
STAYS = 0.75
# Those of links are powers of 2^(1/2), up to 30 % from the list nothing is corrected: what else
# crosses them is not known well.
LINK_STEPS_A_DOUBLING = 2
# No step has more.
MOST_CHUNKS = 1024
# A first token is not corrected by less, and then by steps of a quarter.
LEAST_LATE_S = 0.0005
LATE_STEP = 0.25
# Nothing takes less time than that.
SHORTEST_S = 1e-9


class RecentMeasurements:
    """The last few of one kind, as distances from the list (0); at first all are 0. `rank` says
    which of them in order of size is the one that counts."""

    def __init__(self, rank: int) -> None:
        self._values: deque[float] = deque([0.0] * WINDOW, maxlen=WINDOW)
        self._rank = rank
        self._faded_ns: int | None = None

    @property
    def value(self) -> float:
        return sorted(self._values)[self._rank]

    def add(self, value: float, half_life_ns: float, now_ns: int) -> None:
        self.fade(half_life_ns, now_ns)
        self._values.append(value)
        self._faded_ns = now_ns + GRACE_NS

    def fade(self, half_life_ns: float, now_ns: int) -> None:
        """They lose weight while no others come."""
        if self._faded_ns is None or now_ns <= self._faded_ns:
            return
        left = 0.5 ** ((now_ns - self._faded_ns) / half_life_ns)
        self._values.extend([value * left for value in self._values])
        self._faded_ns = now_ns


class StepsMeasured:
    """Steps of one kind: what they took, and would have taken by the list, since the last
    measurement."""

    def __init__(self) -> None:
        self.recent = RecentMeasurements(MIDDLE)
        self._steps = 0
        self._listed_s = self._measured_s = 0.0

    def add(self, steps: int, listed_s: float, measured_s: float) -> float | None:
        """The logarithm of measured over listed seconds, once there are enough steps."""
        self._steps += steps
        self._listed_s += listed_s
        self._measured_s += measured_s
        if self._steps < LEAST_STEPS and self._measured_s < LEAST_STEPS_S:
            return None
        ratio = log2(max(self._measured_s, SHORTEST_S) / max(self._listed_s, SHORTEST_S))
        self._steps, self._listed_s, self._measured_s = 0, 0.0, 0.0
        return ratio


class LearnedCorrection:
    """The `correction` of one worker, and the measurements behind it."""

    def __init__(self, learning: Learning, listed: WorkerCost) -> None:
        self.listed = listed
        self.correction = Correction()
        self._learning = learning
        self._half_life_ns = learning.half_life_s * 1e9
        self._totals: dict[tuple[bool, int], StepTotals] | None = None
        self._decode, self._prefill = StepsMeasured(), StepsMeasured()
        self._network = RecentMeasurements(QUICK)
        # The last transfers with each peer, as (instant, times of what is listed at least).
        self._with_peers: dict[str, deque[tuple[int, float]]] = {}
        self._late = RecentMeasurements(MIDDLE)

    def steps_reported(self, totals: Iterable[StepTotals], now_ns: int) -> None:
        """What its steps took since its start. The first look is what others are compared with."""
        before = self._totals
        self._totals = {(each.chunked, each.magnitude): each for each in totals}
        if before is None:
            return
        new = [
            each.since(before[key]) if key in before else each for key, each in self._totals.items()
        ]
        for chunked, measured in ((False, self._decode), (True, self._prefill)):
            alike = [each for each in new if each.chunked is chunked and each.steps > 0]
            if not alike:
                continue
            listed_s = sum(
                each.steps * _listed_seconds(self.listed.step_time, each) for each in alike
            )
            measured_s = sum(each.duration_ns for each in alike) / 1e9
            ratio = measured.add(sum(each.steps for each in alike), listed_s, measured_s)
            if ratio is not None:
                measured.recent.add(ratio, self._half_life_ns, now_ns)

    def transfer_measured(self, peer: str, least: float, most: float, now_ns: int) -> None:
        """A KV transfer from or to `peer` took from `least` to `most` times (as logarithms) what
        its links would have taken alone, by how much of it contention explains."""
        known, least = self._network.value, least - UNKNOWN_TRAFFIC
        self._with_peers.setdefault(peer, deque(maxlen=KEPT_A_PEER)).append((now_ns, least))
        if most < known:
            self._network.add(most, self._half_life_ns, now_ns)
        elif known < least and known < (quickest := self._quickest(now_ns)):
            # Who is quicker with others is not the slow end of this one.
            self._network.add(quickest, self._half_life_ns, now_ns)

    def forget_peer(self, peer: str) -> None:
        """That worker is gone."""
        self._with_peers.pop(peer, None)

    def _quickest(self, now_ns: int) -> float:
        """Of the recent transfers with anybody."""
        return min(
            least
            for last in self._with_peers.values()
            for at_ns, least in last
            if now_ns - at_ns <= KEPT_A_PEER_NS
        )

    def first_token_late(self, late_s: float, now_ns: int) -> None:
        """A first token came so much later than its steps explain."""
        self._late.add(late_s, self._half_life_ns, now_ns)

    def fade(self, now_ns: int) -> None:
        """What is not measured any more goes back to the list."""
        steps = self._decode.recent, self._prefill.recent
        for each in (*steps, self._network, self._late):
            each.fade(self._half_life_ns, now_ns)

    def revise(self) -> bool:
        """Correct by what is measured now. Whether that changes anything."""
        before, most = self.correction, self._learning.most_factor
        self.correction = Correction(
            decode=_factor(before.decode, self._decode.recent.value, most),
            prefill=_factor(before.prefill, self._prefill.recent.value, most),
            network=_factor(before.network, self._network.value, most, LINK_STEPS_A_DOUBLING),
            first_token_s=_late(before.first_token_s, self._late.value, self._learning.most_late_s),
        )
        return self.correction != before


def _listed_seconds(step_time: StepTime, totals: StepTotals) -> float:
    """Of the mean step, by listed costs. Totals come from another process, and may be absurd."""
    steps = totals.steps
    decodes, context_tokens, sampled_rows = (
        max(0, round(each / steps))
        for each in (totals.decodes, totals.context_tokens, totals.sampled_rows)
    )
    if not totals.chunked and sampled_rows == decodes:
        # What drafts gained would have taken steps of their own: so routing and admission, which
        # ask for the seconds of a token, know what speculation makes of them.
        gained = 1.0 + totals.kept_drafts / max(1, totals.decodes)
        return gained * step_time.decode_seconds(decodes, context_tokens)
    chunks: tuple[tuple[int, int], ...] = ()
    if totals.chunked:
        prompt_tokens = max(1, totals.prompt_tokens)
        tokens = prompt_tokens / max(1, totals.chunks)
        before = totals.attended_pairs / prompt_tokens - (tokens + 1) / 2
        count = min(max(1, round(totals.chunks / steps)), MOST_CHUNKS)
        size = max(1, round(prompt_tokens / steps / count))
        chunks = ((max(0, round(before)), size),) * count
    return step_time.seconds(StepShape(chunks, decodes, context_tokens, sampled_rows))


def _factor(
    now: float, measured: float, most: float, steps_a_doubling: int = STEPS_A_DOUBLING
) -> float:
    """The factor for this logarithm; the one that stands `now` if it is near."""
    places = measured * steps_a_doubling
    if abs(places - log2(now) * steps_a_doubling) < STAYS:
        return now
    return float(min(max(2.0 ** (round(places) / steps_a_doubling), 1 / most), most))


def _late(now_s: float, measured_s: float, most_s: float) -> float:
    measured_s = min(measured_s, most_s)
    if measured_s < LEAST_LATE_S:
        # What stands is given up only well below what would be taken up.
        return now_s if now_s and measured_s > LEAST_LATE_S / 2 else 0.0
    near = abs(measured_s - now_s) <= LATE_STEP * now_s
    return now_s if near else round(measured_s, 4)
