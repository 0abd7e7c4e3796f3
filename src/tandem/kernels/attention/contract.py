"""What paged attention sees: packed queries, one layer of the pool, and where each key lies.

Axes: T packed tokens, H query heads, K kv heads, D head dim, N sequences, B blocks, S slots a
block. Query i of a sequence with q queries and c keys stands at position c - q + i.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from tandem.kernels.errors import KernelArgumentError


@dataclass(frozen=True)
class SequenceSpan:
    """One sequence of the batch, on the host."""

    index: int
    query_start: int
    query_tokens: int
    context_tokens: int


@dataclass(frozen=True)
class AttentionBatch:
    """Built once a step, read by every layer. All int32, on the device of the queries.

    query_start [N + 1] are running sums of query tokens; context_lengths [N] count all keys that
    the last query sees, those of this step included; block_table [N, max_blocks] may hold any
    value past the last block in use (and before a window's first).
    """

    query_start: Tensor
    context_lengths: Tensor
    block_table: Tensor

    def __post_init__(self) -> None:
        # Once a step, so that no layer has to look again.
        for name in ("query_start", "context_lengths", "block_table"):
            tensor: Tensor = getattr(self, name)
            if tensor.dtype is not torch.int32 or tensor.stride(-1) != 1:
                raise KernelArgumentError(name, tensor.dtype, "int32 with a contiguous last axis")
        sequences = self.context_lengths.shape[0]
        if self.query_start.shape[0] != sequences + 1 or self.block_table.shape[0] != sequences:
            found = (tuple(self.query_start.shape), tuple(self.block_table.shape))
            expected = f"query_start [{sequences + 1}], block_table [{sequences}, max_blocks]"
            raise KernelArgumentError("batch", found, expected)

    @property
    def sequences(self) -> int:
        return int(self.context_lengths.shape[0])

    @cached_property
    def spans(self) -> tuple[SequenceSpan, ...]:
        """The sequences with queries, copied to the host once a step."""
        starts: list[int] = self.query_start.tolist()
        contexts: list[int] = self.context_lengths.tolist()
        return tuple(
            SequenceSpan(index, starts[index], starts[index + 1] - starts[index], context_tokens)
            for index, context_tokens in enumerate(contexts)
            if starts[index + 1] > starts[index]
        )


class PagedAttention(Protocol):
    def __call__(
        self,
        q_THD: Tensor,
        kv_B2KSD: Tensor,
        batch: AttentionBatch,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """out_THD, contiguous. A query at p sees keys 0..p, or only the last `window` of them."""
        ...


def check_attention(q_THD: Tensor, kv_B2KSD: Tensor) -> None:
    heads, head_dim = q_THD.shape[1], q_THD.shape[2]
    pool = kv_B2KSD.shape
    if len(pool) != 5 or pool[1] != 2 or pool[4] != head_dim or heads % pool[2]:
        raise KernelArgumentError(
            "kv_B2KSD", tuple(pool), f"[B, 2, K, S, {head_dim}] with K dividing {heads}"
        )
