"""The sequences that an encoder reads at once, laid end to end without padding.

Axes: T packed tokens, D sequences, N sequences of one length, L tokens of a sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise

import torch
from torch import Tensor

from tandem.facts.encoder import EncodedText


@dataclass(frozen=True)
class EncoderBatch:
    """int64 [T]: token ids and token types. `query_start` are the places of the D sequences' first
    tokens, and last T; no sequence is empty."""

    token_ids: Tensor
    token_types: Tensor
    query_start: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.query_start[-1] == len(self.token_ids) == len(self.token_types)
        assert all(start < stop for start, stop in self.spans)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First token of each sequence, and the one behind its last."""
        return tuple(pairwise(self.query_start))

    @property
    def longest_tokens(self) -> int:
        return max((stop - start for start, stop in self.spans), default=0)

    @cached_property
    def groups(self) -> tuple[Tensor, ...]:
        """The places [N, L] of the tokens of all sequences of a length, for each length."""
        starts: dict[int, list[int]] = {}
        for start, stop in self.spans:
            starts.setdefault(stop - start, []).append(start)
        device = self.token_ids.device
        return tuple(
            torch.tensor(of_length, device=device)[:, None] + torch.arange(length, device=device)
            for length, of_length in starts.items()
        )

    @cached_property
    def positions(self) -> Tensor:
        """int64 [T], from 0 in each sequence."""
        lengths = [stop - start for start, stop in self.spans]
        places_T = torch.arange(self.query_start[-1])
        starts_D = torch.tensor(self.query_start[:-1], dtype=torch.int64)
        starts_T = starts_D.repeat_interleave(torch.tensor(lengths, dtype=torch.int64))
        return (places_T - starts_T).to(self.token_ids.device)


def batch_of(texts: Sequence[EncodedText], device: torch.device) -> EncoderBatch:
    """Texts, in their order, as one batch."""
    ids = list(chain.from_iterable(text.token_ids for text in texts))
    types = list(chain.from_iterable(text.token_types for text in texts))
    return EncoderBatch(
        torch.tensor(ids, dtype=torch.int64, device=device),
        torch.tensor(types, dtype=torch.int64, device=device),
        tuple(accumulate((len(text.token_ids) for text in texts), initial=0)),
    )
