"""Forecast of a decode worker's load some seconds ahead, and whether one more request fits.

Views count sequences and do not say how old they are, so ages are taken as even: with answers of
`answer_tokens`, one each `gap_s`, sequences end evenly over one answer's time.
"""

from dataclasses import dataclass
from math import ceil

from tandem.policy.views import RequestView, WorkerView

# Rates and shares stay finite, and exact enough, where a prediction is zero or endless.
_SHORTEST_GAP_S = 1e-9
_SHORTEST_ARRIVAL_S, _LONGEST_ARRIVAL_S = 1e-3, 1e9


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Expected numbers. `kv_tokens` are what the device holds, shared prefixes once;
    `context_tokens` count them for every sequence that attends to them."""

    sequences: float
    context_tokens: float
    kv_tokens: float


@dataclass(frozen=True, slots=True)
class DecodeForecast:
    """Prediction of Mooncake (arXiv 2407.00079, section 7.4: every decode takes one constant time)
    on aggregate numbers.

    Of the sequences that run now, a share of 1 - u/T still runs u seconds ahead, T being
    `answer_s`. Those on their way start evenly over the next `arriving_s`, and each stays for T.
    A survivor's context grows by a token each `gap_s`.
    """

    view: WorkerView
    answer_tokens: float
    gap_s: float
    answer_s: float
    arriving_s: float

    @property
    def crowd(self) -> int:
        """Everybody who is known of, running or on the way."""
        return self.view.running_sequences + _on_their_way(self.view)[0]

    def at(self, ahead_s: float) -> Occupancy:
        view, per_answer = self.view, min(1.0, ahead_s / self.answer_s)
        staying = 1.0 - per_answer
        # The older half of the sequences leaves first, so the mean age grows at half the pace.
        grown = view.running_sequences * self.answer_tokens * per_answer / 2
        used_tokens = (view.total_blocks - view.free_blocks) * view.block_size
        kept_tokens = min(view.context_tokens, used_tokens)

        arriving, prompts = _on_their_way(view)
        youngest_s = max(0.0, ahead_s - self.arriving_s)
        oldest_s = min(ahead_s, self.answer_s)
        share = max(0.0, oldest_s - youngest_s) / self.arriving_s
        written = min(self.answer_tokens, (youngest_s + oldest_s) / 2 / self.gap_s)
        brought = share * (prompts + arriving * written)
        return Occupancy(
            sequences=staying * view.running_sequences + share * arriving,
            context_tokens=staying * (view.context_tokens + grown) + brought,
            kv_tokens=staying * (kept_tokens + grown) + brought,
        )


def forecast(view: WorkerView, answer_tokens: float, arriving_s: float) -> DecodeForecast:
    """`answer_tokens` is the mean length of an answer; `arriving_s` is by when all requests on
    their way will have started to decode."""
    answer_tokens = max(1.0, answer_tokens)
    arriving, prompts = _on_their_way(view)
    # Whoever comes to an idle worker in a crowd does not decode at an idle worker's pace.
    gap_s = view.cost.decode_seconds(
        max(1, view.running_sequences, arriving), max(view.context_tokens, prompts)
    )
    gap_s += prompts_between_s(view, view.running_sequences + arriving, answer_tokens)
    gap_s = max(_SHORTEST_GAP_S, gap_s)
    arriving_s = min(max(_SHORTEST_ARRIVAL_S, arriving_s), _LONGEST_ARRIVAL_S)
    return DecodeForecast(view, answer_tokens, gap_s, answer_tokens * gap_s, arriving_s)


def prompts_between_s(view: WorkerView, others: float, answer_tokens: float) -> float:
    """What the prompts of others add to the gap between two tokens, where the worker computes
    prompts, too, and decodes wait for them (DistServe, arXiv 2401.09670, section 2): during an
    answer as many requests come as are there (Little's law), each with one prompt."""
    if not (view.role.prefills and view.typical_prefill_tokens):
        return 0.0
    return others * view.cost.prefill_seconds(view.typical_prefill_tokens) / answer_tokens


def _on_their_way(view: WorkerView) -> tuple[int, int]:
    """Sequences that do not decode yet, and their prompt tokens."""
    sequences = view.waiting_requests + view.expected_decodes
    return sequences, view.expected_context_tokens + view.queued_prefill_tokens


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """A worker with one more request on it, each share against its limit: above 1 does not hold."""

    gap_s: float
    gap_share: float
    sequences: int
    sequences_share: float
    kv_tokens: int
    kv_share: float

    def worst(self) -> float:
        return max(self.gap_share, self.sequences_share, self.kv_share)


EMPTY = Occupancy(0.0, 0.0, 0.0)


def load_with(
    request: RequestView, view: WorkerView, others: Occupancy, prompts_s: float = 0.0
) -> DecodeLoad:
    """The request attends to its prompt and, on average, half its answer; it needs room for all of
    both; prompts of others add `prompts_s` to each gap. Without an SLO on TPOT only the room for
    sequences and KV limits."""
    own_context_tokens = request.prompt_tokens + ceil(request.expected_output_tokens / 2)
    own_kv_tokens = request.prompt_tokens + ceil(request.expected_output_tokens)
    # An expected 0.3 sequence is one that may still be there; 1e-6 forgives rounding.
    sequences = 1 + ceil(others.sequences - 1e-6)
    context_tokens = own_context_tokens + ceil(others.context_tokens - 1e-6)
    kv_tokens = own_kv_tokens + ceil(others.kv_tokens - 1e-6)
    gap_s = view.cost.decode_seconds(sequences, context_tokens) + prompts_s
    promised_s = request.slo.tpot_s
    return DecodeLoad(
        gap_s=gap_s,
        gap_share=0.0 if promised_s is None else gap_s / promised_s,
        sequences=sequences,
        sequences_share=sequences / view.max_sequences,
        kv_tokens=kv_tokens,
        kv_share=kv_tokens / view.total_tokens,
    )
