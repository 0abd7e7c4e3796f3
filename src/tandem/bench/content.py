"""The tokens or words of a planned prompt: a pure function of seed, sweep point and keys."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.bench.words import ADJECTIVES, NOUNS, VALUES
from tandem.bench.workload import Segment

_WORDS = tuple(f" {word}" for word in (*ADJECTIVES, *NOUNS, *VALUES))


@dataclass(frozen=True)
class ContentSource:
    """`point` separates the runs of a sweep: were their prompts equal, every run after the first
    would be answered out of the server's prefix cache."""

    seed: int
    point: int = 0

    def token_ids(self, segments: tuple[Segment, ...], vocabulary_tokens: int) -> list[int]:
        """Random ids below `vocabulary_tokens`."""
        ids: list[int] = []
        for segment in segments:
            ids += self._draw(segment, vocabulary_tokens).tolist()
        return ids

    def text(self, segments: tuple[Segment, ...]) -> str:
        """One random word a token; most tokenizers make about one token of each."""
        words = [
            _WORDS[place] for segment in segments for place in self._draw(segment, len(_WORDS))
        ]
        return "".join(words).lstrip()

    def _draw(self, segment: Segment, below: int) -> NDArray[np.int64]:
        rng = np.random.default_rng([self.seed, self.point, *segment.key])
        return rng.integers(0, below, size=segment.tokens)
