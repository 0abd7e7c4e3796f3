"""From logits to tokens: penalties, DRY, bias, bans and grammars, then the counter-based draw, then
logprobs.

Everything is a function of the logits, the sequence's tokens so far and its parameters; nothing
is remembered between steps, so a resumed sequence goes on with the same tokens.
Axes: R sampling rows, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tandem.engine.drafts import Draws
from tandem.engine.dry import dry_penalties
from tandem.engine.grammars import GrammarMasks
from tandem.engine.slots import Slots
from tandem.facts.request import TokenLogprobs
from tandem.kernels.faces import Kernels
from tandem.kernels.penalties import PenaltyRows
from tandem.kernels.sampling import TokenLogprobs as ScoredTokens

Logprobs = tuple[TokenLogprobs | None, ...]


class Sampler:
    """Draws the next token of each row. Owns nothing but the choice of kernels."""

    def __init__(self, kernels: Kernels, slots: Slots, masks: GrammarMasks) -> None:
        self._kernels = kernels
        self._slots = slots
        self._masks = masks

    def draw(self, logits_RV: Tensor, draws: Draws) -> tuple[Tensor, "PendingLogprobs | None"]:
        """The tokens (int64 [R], on the device) of these draws; `NO_TOKEN` where the model's
        numbers are not finite.

        `logits_RV` is fp32 and is overwritten where parameters adjust it.
        """
        row_slots = draws.slots
        wanting = np.flatnonzero(self._slots.wants_logprobs[row_slots])
        raw_logits_RV = None
        if len(wanting):
            # Logprobs are those of the model, before anything that the client wished.
            raw_logits_RV = logits_RV[torch.from_numpy(wanting).to(logits_RV.device)]
        penalised = np.flatnonzero(self._slots.penalised[row_slots])
        if len(penalised):
            self._kernels.penalise(logits_RV, self._penalties(draws, penalised))
        for row in np.flatnonzero(self._slots.adjusts_logits[row_slots]).tolist():
            self._adjust(logits_RV[row], draws, row)
        self._masks.apply(logits_RV, draws)
        rows = self._slots.sampling_rows(row_slots, draws.positions)
        tokens_R = self._kernels.sample(logits_RV, rows)
        if raw_logits_RV is None:
            return tokens_R, None
        tops = [self._slots.sampling[slot].top_logprobs for slot in row_slots[wanting]]
        top_counts = [top or 0 for top in tops]
        scored = self._kernels.token_logprobs(
            raw_logits_RV,
            tokens_R[torch.from_numpy(wanting).to(tokens_R.device)],
            min(max(top_counts), logits_RV.shape[1]),
        )
        return tokens_R, PendingLogprobs(len(row_slots), wanting, top_counts, scored)

    def _penalties(self, draws: Draws, rows: np.ndarray) -> PenaltyRows:
        row_slots = draws.slots[rows]
        before = [self._tokens_before(draws, row) for row in rows.tolist()]
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(tokens) for tokens in before], out=starts[1:])
        return PenaltyRows(
            rows=torch.from_numpy(rows),
            tokens=torch.cat(before),
            starts=torch.from_numpy(starts),
            answers=torch.from_numpy(starts[:-1] + self._slots.prompt_tokens[row_slots]),
            factors=torch.from_numpy(self._slots.penalties[row_slots]),
        )

    def _adjust(self, logits_V: Tensor, draws: Draws, draw: int) -> None:
        slot = int(draws.slots[draw])
        sampling = self._slots.sampling[slot]
        prompt_tokens = int(self._slots.prompt_tokens[slot])
        tokens = self._tokens_before(draws, draw)
        if sampling.uses_dry:
            self._apply_dry(logits_V, slot, tokens)
        if sampling.logit_bias:
            ids, biases = zip(*sampling.logit_bias, strict=True)
            index = torch.tensor(ids, device=logits_V.device)
            bias = torch.tensor(biases, dtype=logits_V.dtype, device=logits_V.device)
            logits_V.index_add_(0, index, bias)
        bans = self._slots.bans[slot]
        if bans is not None:
            bans.apply(logits_V, tokens, len(tokens) - prompt_tokens)

    def _tokens_before(self, draws: Draws, draw: int) -> Tensor:
        """All tokens of its sequence that come before what is drawn."""
        slot, position = int(draws.slots[draw]), int(draws.positions[draw])
        drafts = draws.tokens_before(draw)
        if drafts is None:
            return self._slots.tokens[slot, :position]
        known = self._slots.tokens[slot, : position - len(drafts)]
        return torch.cat((known, known.new_tensor(drafts)))

    def _apply_dry(self, logits_V: Tensor, slot: int, tokens: Tensor) -> None:
        """The tokens are looked at on the host, as many as DRY looks back."""
        sampling = self._slots.sampling[slot]
        back = sampling.dry_penalty_last_n
        first = 0 if back < 0 else max(0, len(tokens) - back)
        looked_at = tokens[first:].cpu().contiguous()
        ids, penalties = dry_penalties(looked_at, sampling, self._kernels.repeated_suffixes)
        logits_V[ids.to(logits_V.device)] -= penalties.to(logits_V)


class PendingLogprobs:
    """Scores that still lie on the device; `collect` brings them to the host."""

    def __init__(
        self,
        row_count: int,
        wanting: np.ndarray,
        top_counts: list[int],
        scored: ScoredTokens,
    ) -> None:
        self._row_count = row_count
        self._wanting = wanting
        self._top_counts = top_counts
        self._scored = scored

    def collect(self) -> Logprobs:
        """One entry a sampling row; None where none were asked for."""
        entries: list[TokenLogprobs | None] = [None] * self._row_count
        found = logprobs_on_host(self._scored, self._top_counts)
        for row, logprobs in zip(self._wanting.tolist(), found, strict=True):
            entries[row] = logprobs
        return tuple(entries)


def logprobs_on_host(scored: ScoredTokens, top_counts: Sequence[int]) -> list[TokenLogprobs]:
    """Of each row, with so many alternatives as are wanted of it; waits for the device."""
    logprobs, ranks = scored.logprob.tolist(), scored.rank.tolist()
    ids, values = scored.top_ids.tolist(), scored.top_logprobs.tolist()
    found = []
    for row, count in zip(range(len(logprobs)), top_counts, strict=False):
        top = tuple(zip(ids[row][:count], values[row][:count], strict=True))
        found.append(TokenLogprobs(logprobs[row], ranks[row], top))
    return found
