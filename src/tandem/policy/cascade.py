"""Model cascade: whether the answer of a smaller model is good enough, by the probabilities that it
gave its own tokens, so that a larger model computes only the others.

The least sure stretch decides, not the mean of all: one guessed number spoils a long sure answer.
Sources: FrugalGPT (Chen et al., arXiv 2305.05176) for cascades; quantiles of token uncertainty
instead of their mean, Gupta et al., ICLR 2024 (arXiv 2404.10136).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, isnan

from tandem.facts.errors import InvalidConfiguration

DEFAULT_FLOOR = 0.7
DEFAULT_WINDOW_TOKENS = 4


@dataclass(frozen=True, slots=True)
class ConfidenceFloor:
    """An answer counts if the tokens of each stretch of `window_tokens` of it (or of all of it, if
    it is shorter) have a geometric mean probability of at least `floor` under the raw logits. At 0
    every answer counts, at 1 only a certain one. Raises `InvalidConfiguration`."""

    floor: float = DEFAULT_FLOOR
    window_tokens: int = DEFAULT_WINDOW_TOKENS

    def __str__(self) -> str:
        return f"floor {self.floor:g}, window {self.window_tokens} tokens"

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1:
            raise InvalidConfiguration(
                f"cascade floor is {self.floor:g}; choose a probability from 0 to 1"
            )
        if self.window_tokens < 1:
            raise InvalidConfiguration(
                f"cascade window_tokens is {self.window_tokens}; choose at least 1"
            )


class Confidence:
    """How sure a model was of one answer so far. `least` is that of its least sure stretch."""

    def __init__(self, terms: ConfidenceFloor) -> None:
        self.least = 1.0
        self._terms = terms
        self._recent: deque[float] = deque(maxlen=terms.window_tokens)
        self._complete = False

    def add(self, logprobs: Iterable[float]) -> bool:
        """Log-probabilities of the tokens that follow. Whether the answer still counts; one that
        does not will not again."""
        for logprob in logprobs:
            self._recent.append(logprob)
            if len(self._recent) == self._recent.maxlen:
                self._complete = True
                self._look()
        return self.counts

    def end(self) -> bool:
        """The answer is complete: whether it counts."""
        if not self._complete and self._recent:
            self._look()
        return self.counts

    @property
    def counts(self) -> bool:
        return self.least >= self._terms.floor

    def _look(self) -> None:
        mean = sum(self._recent) / len(self._recent)
        # NaN compares as neither less nor more.
        self.least = min(self.least, 0.0 if isnan(mean) else exp(min(0.0, mean)))
