"""Ranking of the sequences of a call with `best_of` above `n`: the answers whose tokens have the
highest mean log-probability, as OpenAI defines it."""

import math
from collections.abc import Sequence

from tandem.api.choice import ChoiceDelta
from tandem.api.search_request import Search
from tandem.api.whole_response import Transcript


class Ranking:
    """Grows by the deltas of all sequences. Of a call that shows all, it does nothing."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._logprob_sums: dict[int, float] = {}
        self._tokens: dict[int, int] = {}

    def add_delta(self, delta: ChoiceDelta) -> None:
        """Counts what the delta shows, and takes log-probabilities out that nobody asked to see."""
        if not self._search.ranks:
            return
        choice = delta.choice
        own = sum(chosen.logprob for _, chosen in delta.shown)
        self._logprob_sums[choice] = self._logprob_sums.get(choice, 0.0) + own
        self._tokens[choice] = self._tokens.get(choice, 0) + len(delta.shown)
        if not self._search.shows_logprobs:
            delta.shown = ()

    def best_of(self, transcripts: Sequence[Transcript]) -> list[Transcript]:
        """The choices of the answer, those of each prompt best first; of equal ones the earlier
        sequence."""
        if not self._search.ranks:
            return list(transcripts)
        shown, sequences = self._search.shown, self._search.sequences
        ranked: list[Transcript] = []
        of_prompt: dict[int, int] = {}
        for each in sorted(transcripts, key=lambda each: -self._mean(each.choice)):
            prompt = each.choice // sequences
            place = of_prompt[prompt] = of_prompt.get(prompt, -1) + 1
            if place < shown:
                each.index = prompt * shown + place
                ranked.append(each)
        return sorted(ranked, key=lambda each: each.index)

    def _mean(self, choice: int) -> float:
        """An answer without tokens says nothing, and is the last."""
        tokens = self._tokens.get(choice, 0)
        return self._logprob_sums[choice] / tokens if tokens else -math.inf
