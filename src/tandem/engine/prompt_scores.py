"""Log-probabilities of prompt tokens: which tokens of a step tell them, and what they are.

The hidden state of a token tells how likely the one behind it was. KV that was found in a cache
tells nothing, so whoever wants these computes its prompt. Logits are made and scored a slice at a
time: those of a whole prompt would take more memory than all else of a step.
Axes: N rows of the plan, P scored tokens of them, S a slice of those, C hidden, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tandem.engine.slots import Slots
from tandem.facts.request import TokenLogprobs
from tandem.facts.steps import PROMPT_SCORE_ROWS, IntArray, StepPlan
from tandem.kernels.sampling import TokenLogprobs as ScoredTokens
from tandem.models.decoder import Decoder

PromptScores = tuple[tuple[TokenLogprobs, ...], ...]


@dataclass(frozen=True, slots=True)
class ScoredPlaces:
    """Of the packed tokens those behind which a prompt token is scored [P]: `counts` [N] of each
    row, row after row. The scored tokens stand at `positions` [P] of the sequences in `slots`."""

    counts: IntArray
    packed: IntArray
    slots: IntArray
    positions: IntArray

    @classmethod
    def of(cls, plan: StepPlan, slots: Slots) -> "ScoredPlaces | None":
        """Those of a plan that `slots` has taken over; None where there are none."""
        wants_N = slots.wants_prompt_logprobs[plan.slots]
        if not wants_N.any():
            return None
        ends = np.minimum(plan.starts + plan.counts, slots.prompt_tokens[plan.slots] - 1)
        firsts = np.maximum(plan.starts, slots.scored_tokens[plan.slots] - 1)
        counts = np.where(wants_N, np.maximum(ends - firsts, 0), 0).astype(np.int32)
        if not counts.any():
            return None
        begins = np.cumsum(plan.counts) - plan.counts
        before = np.cumsum(counts) - counts
        within = np.arange(counts.sum()) - np.repeat(before, counts)
        return cls(
            counts,
            (np.repeat(begins + firsts - plan.starts, counts) + within).astype(np.int32),
            np.repeat(plan.slots, counts),
            (np.repeat(firsts + 1, counts) + within).astype(np.int32),
        )


def scored_prompt(
    decoder: Decoder, slots: Slots, places: ScoredPlaces, hidden_PC: Tensor
) -> "PendingPromptScores":
    """Score the tokens at these places, whose predecessors have these hidden states. All ranks
    that hold a share of the vocabulary do it together."""
    index_P = slots.to_device(places.slots.astype(np.int64))
    position_P = slots.to_device(places.positions.astype(np.int64))
    tokens_P = slots.tokens[index_P, position_P].long()
    wanted_P = np.array([slots.sampling[slot].prompt_logprobs or 0 for slot in places.slots])
    scored = []
    for first in range(0, len(wanted_P), PROMPT_SCORE_ROWS):
        part = slice(first, first + PROMPT_SCORE_ROWS)
        logits_SV = decoder.logits(hidden_PC[part])
        top_count = min(int(wanted_P[part].max()), logits_SV.shape[1])
        tokens_S = tokens_P[part].contiguous()
        scored.append(decoder.kernels.token_logprobs(logits_SV, tokens_S, top_count))
    return PendingPromptScores(places.counts, wanted_P, scored)


class PendingPromptScores:
    """Scores that still lie on the device; `collect` brings them to the host."""

    def __init__(
        self, counts: IntArray, top_counts: np.ndarray, scored: list[ScoredTokens]
    ) -> None:
        self._counts = counts
        self._top_counts = top_counts
        self._scored = scored

    def collect(self) -> PromptScores:
        """For each row of the plan."""
        entries: list[TokenLogprobs] = []
        for part in self._scored:
            values = zip(
                part.logprob.tolist(),
                part.rank.tolist(),
                part.top_ids.tolist(),
                part.top_logprobs.tolist(),
                strict=True,
            )
            for logprob, rank, ids, logprobs in values:
                count = self._top_counts[len(entries)]
                top = tuple(zip(ids[:count], logprobs[:count], strict=True))
                entries.append(TokenLogprobs(logprob, rank, top))
        ends = np.cumsum(self._counts).tolist()
        return tuple(
            tuple(entries[end - count : end])
            for end, count in zip(ends, self._counts.tolist(), strict=True)
        )


def unsound_rows(scores: PromptScores) -> list[int]:
    """The rows of which some score is of no number."""
    return [row for row, each in enumerate(scores) if any(not score.rank for score in each)]
