"""Baseline routing: random, round robin, least load, power of two choices."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tandem.facts.fleet import Role
from tandem.policy.chance import draw
from tandem.policy.views import RequestView, WorkerView


@dataclass(frozen=True, slots=True)
class Random:
    """Each worker with the same chance, drawn anew for each phase."""

    seed: int = 0

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        drawn = int(draw(self.seed, "random", request.serial, phase) * len(views))
        return _turns(drawn, len(views))


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """One after the other, in order of their ids."""

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        del phase
        return _turns(request.serial, len(views))


@dataclass(frozen=True, slots=True)
class LeastLoad:
    """The fewest requests: running, waiting and on their way. Unit: requests."""

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        del request, phase
        return [float(view.requests) for view in views]


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """The less loaded of two drawn at random (Mitzenmacher, "The Power of Two Choices in
    Randomized Load Balancing", 2001). Unit: requests; infinite for those not drawn."""

    seed: int = 0

    def scores(self, request: RequestView, views: Sequence[WorkerView], phase: Role) -> list[float]:
        count = len(views)
        first = int(draw(self.seed, "first", request.serial, phase) * count)
        scores = [inf] * count
        scores[first] = float(views[first].requests)
        if count > 1:
            # One of the others: a step of 1 to count - 1 from the first.
            step = 1 + int(draw(self.seed, "second", request.serial, phase) * (count - 1))
            second = (first + step) % count
            scores[second] = float(views[second].requests)
        return scores


def _turns(chosen: int, count: int) -> list[float]:
    """How many turns after the chosen one each has its own."""
    return [float((place - chosen) % count) for place in range(count)]
