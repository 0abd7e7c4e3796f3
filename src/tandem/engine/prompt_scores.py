"""Log-probabilities of prompt tokens: each is scored by the logits of the token before it, which
are the model's own, before anything that the client wished.

Owns nothing. A step scores what its plan says; whatever is computed in one step or in several has
the same bits where rows do not depend on the batch.
Axes: S scored tokens, C hidden, V vocabulary, P a part of the scored tokens.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tandem.engine.drafts import Indices, within
from tandem.engine.sampler import logprobs_on_host
from tandem.engine.slots import Slots
from tandem.facts.request import TokenLogprobs
from tandem.facts.steps import MOST_SCORED_TOKENS, IntArray, StepPlan
from tandem.kernels.sampling import TokenLogprobs as ScoredTokens
from tandem.models.decoder import Decoder


def scored_tokens(plan: StepPlan, query_start: IntArray) -> Indices:
    """Of the packed tokens, those behind which a prompt token is scored, row after row."""
    counts = plan.scored_counts
    return np.repeat(query_start[:-1], counts).astype(np.int64) + within(counts)


class PromptScorer:
    """Scores the prompt tokens of a step, a bounded number at a time."""

    def __init__(self, decoder: Decoder, slots: Slots) -> None:
        self._decoder = decoder
        self._slots = slots

    def score(self, plan: StepPlan, hidden_SC: Tensor) -> "PendingScores":
        """`hidden_SC` are the hidden states of the plan's `scored_tokens`. All ranks that share the
        vocabulary do this for the same plans."""
        counts, slots = plan.scored_counts, self._slots
        slots_S = np.repeat(plan.slots, counts)
        places_S = np.repeat(plan.starts, counts) + within(counts) + 1
        given_S = slots.read_tokens(slots_S, places_S)
        top_counts = [slots.sampling[slot].prompt_logprobs or 0 for slot in slots_S.tolist()]
        parts: list[ScoredTokens] = []
        for first in range(0, len(slots_S), MOST_SCORED_TOKENS):
            end = first + MOST_SCORED_TOKENS
            logits_PV = self._decoder.logits(hidden_SC[first:end])
            most = min(max(top_counts[first:end]), logits_PV.shape[1])
            given_P = given_S[first:end]
            parts.append(self._decoder.kernels.token_logprobs(logits_PV, given_P, most))
        return PendingScores(tuple(parts), tuple(top_counts))


@dataclass(frozen=True, slots=True)
class PendingScores:
    """Scores that still lie on the device, part by part; `top_counts` says how many alternatives
    to each token are wanted."""

    parts: tuple[ScoredTokens, ...]
    top_counts: tuple[int, ...]

    def collect(self) -> tuple[TokenLogprobs, ...]:
        """All of them, on the host."""
        found: list[TokenLogprobs] = []
        for part in self.parts:
            found += logprobs_on_host(part, self.top_counts[len(found) :])
        return tuple(found)
