"""Beam search: which continuations of a prompt go on, which have ended, and when nothing can change
any more. Knows the likeliest next tokens of each beam, and nothing of who computes them.

Order and scores are those of vLLM, where an answer's score is its log-probability divided by the
number of tokens of prompt and answer, but for one that ended it, to the power of the length
penalty. Ties go to the better beam before, then to the likelier token, then to whatever ended
first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.facts.request import TokenLogprobs

# The likeliest next tokens with their log-probabilities, best first.
Likeliest = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class BeamPlan:
    """What a search was asked for. So many beams (`width`) go on at each step, of at most
    `max_tokens`; `end_token_ids` end one. With `stops_early` the search is over once `width` have
    ended, else once no other can become better. Of each token, as many `alternatives` are kept."""

    width: int
    max_tokens: int
    length_penalty: float = 1.0
    end_token_ids: frozenset[int] = frozenset()
    stops_early: bool = False
    alternatives: int = 0

    @property
    def candidates(self) -> int:
        """How many next tokens of a beam count: with so many, `width` are left where every other
        one ends a beam."""
        return 2 * self.width


@dataclass(frozen=True, slots=True)
class Beam:
    """An answer so far, with the logarithm of its probability; its last token ended it where
    `is_ended`."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    logprob_sum: float = 0.0
    is_ended: bool = False

    @property
    def text_tokens(self) -> int:
        """All but one that ended it."""
        return len(self.tokens) - self.is_ended


class BeamSearch:
    """The beams of one prompt. Advance the `running` ones until `is_over`."""

    def __init__(self, plan: BeamPlan, prompt_tokens: int) -> None:
        self.running: Sequence[Beam] = (Beam(),)
        self.ended: list[Beam] = []
        self._plan = plan
        self._prompt_tokens = prompt_tokens

    @property
    def is_over(self) -> bool:
        plan = self._plan
        if not self.running or len(self.running[0].tokens) >= plan.max_tokens:
            return True
        if len(self.ended) < plan.width:
            return False
        if plan.stops_early:
            return True
        bar = sorted(map(self.score, self.ended), reverse=True)[plan.width - 1]
        return all(self._reachable(beam) <= bar for beam in self.running)

    def advance(self, likeliest: Sequence[Likeliest]) -> None:
        """One step, with what may follow each of the running beams."""
        plan = self._plan
        going_on: list[Beam] = []
        for beam, tokens in zip(self.running, likeliest, strict=True):
            for place, (token, logprob) in enumerate(tokens[: plan.candidates]):
                ends = token in plan.end_token_ids
                chosen = TokenLogprobs(logprob, place + 1, tuple(tokens[: plan.alternatives]))
                grown = Beam(
                    (*beam.tokens, token),
                    (*beam.logprobs, chosen),
                    beam.logprob_sum + logprob,
                    ends,
                )
                (self.ended if ends else going_on).append(grown)
        going_on.sort(key=lambda beam: -beam.logprob_sum)
        self.running = going_on[: plan.width]

    def best(self) -> list[Beam]:
        """The `width` best of all, best first."""
        found = [*self.ended, *self.running]
        return sorted(found, key=self.score, reverse=True)[: self._plan.width]

    def score(self, beam: Beam) -> float:
        return self._score(beam.logprob_sum, beam.text_tokens)

    def _score(self, logprob_sum: float, answer_tokens: int) -> float:
        length = self._prompt_tokens + answer_tokens
        return float(logprob_sum / length**self._plan.length_penalty)

    def _reachable(self, beam: Beam) -> float:
        """What no answer that begins so can surpass: its log-probability only falls, and its length
        lies between that of the beam and the longest."""
        lengths = (len(beam.tokens), self._plan.max_tokens)
        return max(self._score(beam.logprob_sum, length) for length in lengths)
