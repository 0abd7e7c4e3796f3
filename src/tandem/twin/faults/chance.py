"""Random faults: a schedule that is a function of a seed."""

from collections.abc import Sequence
from itertools import count

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Tier
from tandem.policy.chance import draw
from tandem.twin.faults.kinds import Cause, Crash, Fault, Hang, Partition, SlowLink, TierDown

SHORTEST_S, LONGEST_S = 1.0, 30.0
SLOWEST_FACTOR, FASTEST_FACTOR = 0.01, 0.5


def random_faults(
    seed: int, workers: Sequence[str], duration_s: float, rate_per_s: float
) -> tuple[Fault, ...]:
    """Faults in order of time: a Poisson process of `rate_per_s` in the whole cluster over
    `duration_s`. Every kind is as likely, every worker is, and each fault ends after 1 to 30 s.

    A longer duration adds faults behind the same ones. Raises InvalidConfiguration when there are
    no workers or the rate or the duration is negative or not finite.
    """
    if not workers:
        raise InvalidConfiguration("random faults: workers is empty; name at least one")
    for field, value in (("duration_s", duration_s), ("rate_per_s", rate_per_s)):
        if not 0 <= value < float("inf"):
            raise InvalidConfiguration(f"random faults: {field} must be 0 or more, got {value:g}")
    faults: list[Fault] = []
    at_s = 0.0
    for serial in count() if rate_per_s else ():
        chance = _Chance(seed, serial)
        at_s += chance.exponential() / rate_per_s
        if at_s >= duration_s:
            break
        faults.append(Fault(at_s, _cause(chance, workers), chance.between(SHORTEST_S, LONGEST_S)))
    return tuple(faults)


def _cause(chance: "_Chance", workers: Sequence[str]) -> Cause:
    worker = workers[chance.below(len(workers))]
    # A partition needs somebody on the other side.
    match chance.below(5 if len(workers) > 1 else 4):
        case 0:
            return Crash(worker)
        case 1:
            return Hang(worker)
        case 2:
            return SlowLink(worker, chance.between(SLOWEST_FACTOR, FASTEST_FACTOR))
        case 3:
            return TierDown(Tier.REMOTE)
        case _:
            return Partition((worker,), tuple(other for other in workers if other != worker))


class _Chance:
    """A stream of numbers that seed and serial number of the fault decide."""

    def __init__(self, seed: int, serial: int) -> None:
        self._uniform = (draw(seed, "fault", serial, number) for number in count())

    def between(self, low: float, high: float) -> float:
        return low + next(self._uniform) * (high - low)

    def below(self, bound: int) -> int:
        return int(next(self._uniform) * bound)

    def exponential(self) -> float:
        """Mean 1, by comparisons alone: von Neumann, "Various techniques used in connection with
        random digits", 1951. A logarithm would not give the same bits on every machine."""
        whole = 0
        while True:
            first = previous = next(self._uniform)
            descents = 0
            while (following := next(self._uniform)) < previous:
                previous, descents = following, descents + 1
            if descents % 2 == 0:
                return whole + first
            whole += 1
