"""Bans: tokens that a sequence must not draw next, whatever the model thinks of them.

Made once, when the sequence gets its slot. Applied to the logits on the device, without a look from
the host: the token before may be drawn while this step is launched.
Axes: V vocabulary, W words of one length, N their tokens but the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.facts.sampling import SamplingParameters


@dataclass(frozen=True, slots=True)
class _Words:
    """Words of one length: each of the `last` [W] tokens is banned after its `before` [W, N]."""

    before: Tensor
    last: Tensor

    @classmethod
    def of(cls, words: Sequence[tuple[int, ...]], device: torch.device) -> "_Words":
        before = torch.tensor([word[:-1] for word in words], dtype=torch.int32, device=device)
        return cls(
            before.reshape(len(words), len(words[0]) - 1),
            torch.tensor([word[-1] for word in words], device=device),
        )

    def apply(self, logits_V: Tensor, tokens: Tensor, answer_tokens: int) -> None:
        """`tokens` are all so far; the last `answer_tokens` of them are the answer."""
        length = self.before.shape[1]
        if length > answer_tokens:
            return
        found_W = (tokens[len(tokens) - length :] == self.before).all(1)
        lowest = torch.finfo(logits_V.dtype).min
        kept = torch.full_like(self.last, torch.inf, dtype=logits_V.dtype)
        # Several words may end with one token: any of them bans it.
        bounds_W = torch.where(found_W, torch.full_like(kept, lowest), kept)
        logits_V.scatter_reduce_(0, self.last, bounds_W, "amin")


@dataclass(frozen=True, slots=True)
class Bans:
    """Of one sequence: `stops` before its answer has `min_tokens`, all but `allowed` where that is
    not None, and `words`."""

    min_tokens: int
    stops: Tensor | None
    allowed: Tensor | None
    words: tuple[_Words, ...]

    @classmethod
    def of(cls, sampling: SamplingParameters, device: torch.device) -> "Bans | None":
        """None where nothing is banned."""
        ends = sampling.stop_token_ids if sampling.min_tokens else ()
        if not (ends or sampling.allowed_token_ids or sampling.bad_words):
            return None
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for word in sampling.bad_words:
            by_length.setdefault(len(word), []).append(word)
        allowed = sampling.allowed_token_ids
        return cls(
            sampling.min_tokens,
            torch.tensor(ends, device=device) if ends else None,
            torch.tensor(allowed, device=device) if allowed else None,
            tuple(_Words.of(words, device) for words in by_length.values()),
        )

    def apply(self, logits_V: Tensor, tokens: Tensor, answer_tokens: int) -> None:
        """`logits_V` are changed; `tokens` are all so far, the last `answer_tokens` the answer.
        Not to infinity: who bans all there is still gets a token."""
        ends_too_soon = self.stops is not None and answer_tokens < self.min_tokens
        if not ends_too_soon and self.allowed is None and not self.words:
            return
        peak = logits_V.amax()
        lowest = torch.finfo(logits_V.dtype).min
        if self.allowed is not None:
            kept = logits_V[self.allowed]
            logits_V.fill_(lowest)
            logits_V[self.allowed] = kept
        for words in self.words:
            words.apply(logits_V, tokens, answer_tokens)
        if ends_too_soon:
            logits_V[self.stops] = lowest
        # A ban, alone of what adjusts logits, may hide a NaN: a row that held one keeps one.
        logits_V[0] += peak - peak
