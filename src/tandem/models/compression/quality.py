"""How far the logits of a compressed model are from those of the original, and how well each of
them foretells texts.

Axes: T judged tokens of a text, V vocabulary.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Quality:
    """Over the judged tokens of the held-out texts. Errors are of logits; `divergence` is the mean
    Kullback-Leibler divergence from the original's distribution, in nats; `same_choice` the share
    of tokens in whose place both find the same one the most likely."""

    tokens: int
    largest_error: float
    mean_error: float
    divergence: float
    same_choice: float
    perplexity_before: float
    perplexity_after: float


@dataclass(slots=True)
class QualitySums:
    """Sums over texts, one after the other: of each position that foretells a judged token."""

    _largest_error: float = 0.0
    _errors: float = 0.0
    _divergence: float = 0.0
    _same: int = 0
    _positions: int = 0
    _logits: int = 0
    _surprises: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, said_T: Tensor, before_TV: Tensor, after_TV: Tensor) -> None:
        """The tokens of one text that are judged, and the logits of both models for them."""
        error_TV = (after_TV - before_TV).abs()
        self._largest_error = max(self._largest_error, float(error_TV.max()))
        self._errors += float(error_TV.sum(dtype=torch.float64))
        self._logits += error_TV.numel()
        self._same += int((before_TV.argmax(dim=1) == after_TV.argmax(dim=1)).sum())
        before_TV, after_TV = (
            torch.log_softmax(each.to(torch.float64), dim=1) for each in (before_TV, after_TV)
        )
        self._divergence += float((before_TV.exp() * (before_TV - after_TV)).sum())
        self._positions += len(said_T)
        for number, each_TV in enumerate((before_TV, after_TV)):
            self._surprises[number] -= float(each_TV.gather(1, said_T[:, None]).sum())

    def quality(self) -> Quality:
        """Of what was added: one token at least."""
        before, after = (math.exp(each / self._positions) for each in self._surprises)
        return Quality(
            tokens=self._positions,
            largest_error=self._largest_error,
            mean_error=self._errors / self._logits,
            divergence=self._divergence / self._positions,
            same_choice=self._same / self._positions,
            perplexity_before=before,
            perplexity_after=after,
        )
