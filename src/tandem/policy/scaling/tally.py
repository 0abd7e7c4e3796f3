"""Tally of a gang: which answer leads, whether it can still be caught, and how sure that is."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb

from tandem.policy.scaling.contract import Sample, SampleState


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer with the samples that gave it, by number in ascending order. The `weight` decides,
    then the `tie_weight`, then the smallest number. `shown` is the sample that speaks for it."""

    answer: str | None
    numbers: tuple[int, ...]
    weight: float
    tie_weight: float
    shown: int

    @property
    def rank(self) -> tuple[float, float, int]:
        """Smaller is better."""
        return (-self.weight, -self.tie_weight, self.numbers[0])


def candidates_by_vote(samples: Sequence[Sample], *, by_score: bool) -> list[Candidate]:
    """The answers, best first. Each sample has one vote and scores break ties, or, `by_score`,
    each vote weighs what its sample scored (Li et al. 2022). What has no answer has no vote."""
    numbers: dict[str, list[int]] = {}
    for number, sample in enumerate(samples):
        if sample.state is SampleState.FINISHED and sample.answer is not None:
            numbers.setdefault(sample.answer, []).append(number)
    found = []
    for answer, voters in numbers.items():
        score = sum(samples[number].score for number in voters)
        weight, tie_weight = (score, 0.0) if by_score else (float(len(voters)), score)
        shown = min(voters, key=lambda number: (-samples[number].score, number))
        found.append(Candidate(answer, tuple(voters), weight, tie_weight, shown))
    return ranked(found)


def candidates_by_score(samples: Sequence[Sample]) -> list[Candidate]:
    """Each finished sample for itself, best first."""
    return ranked(
        Candidate(sample.answer, (number,), sample.score, 0.0, number)
        for number, sample in enumerate(samples)
        if sample.state is SampleState.FINISHED
    )


def ranked(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda each: each.rank)


def cannot_be_caught(
    candidates: Sequence[Candidate], outstanding: Sequence[int], *, has_ties_by_score: bool
) -> bool:
    """Whether the leader wins whatever the answers of the samples with the numbers `outstanding`
    (ascending, at least one) will be. Each of them adds at most 1 to one candidate, which may be a
    new one."""
    leader = candidates[0]
    for rival in (*candidates[1:], None):
        weight = (rival.weight if rival else 0.0) + len(outstanding)
        if weight > leader.weight:
            return False
        if weight == leader.weight:
            first = min(rival.numbers[0], outstanding[0]) if rival else outstanding[0]
            if has_ties_by_score or first < leader.numbers[0]:
                return False
    return True


def vote_confidence(candidates: Sequence[Candidate]) -> float:
    """How probable it is that the leader (there is one) is the more frequent of the two most
    frequent answers, given the votes so far and a uniform prior: Adaptive-Consistency's beta
    criterion (Aggarwal et al. 2023)."""
    leader = len(candidates[0].numbers)
    rival = len(candidates[1].numbers) if len(candidates) > 1 else 0
    # 1 - I_{1/2}(leader + 1, rival + 1), as the binomial tail that it is for whole numbers.
    tosses = leader + rival + 1
    return float(sum(comb(tosses, heads) for heads in range(leader + 1)) / 2**tosses)


def vote_counts(samples: Sequence[Sample]) -> Mapping[str, int]:
    """Votes of the finished samples, the most first, of equals the one first given."""
    found = candidates_by_vote(samples, by_score=False)
    by_count = sorted(found, key=lambda each: (-len(each.numbers), each.numbers[0]))
    return {each.answer or "": len(each.numbers) for each in by_count}
