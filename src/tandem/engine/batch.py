"""Lays the rows of a plan end to end: which tokens, at which positions, into which KV slots.

Axes: N rows of the plan, T packed tokens.
"""

import numpy as np
import torch

from tandem.engine.slots import Slots
from tandem.facts.steps import StepPlan
from tandem.kernels.attention.contract import AttentionBatch
from tandem.models.decoder import TokenBatch


def token_batch(plan: StepPlan, slots: Slots) -> TokenBatch:
    """The model's input for a plan whose differences `slots` has taken over."""
    block_size = slots.shape.block_size
    counts_N = plan.counts
    ends_N = plan.starts + counts_N
    query_start = np.zeros(len(counts_N) + 1, np.int32)
    np.cumsum(counts_N, out=query_start[1:])
    if int(query_start[-1]) == len(counts_N):
        slots_T, positions_T = plan.slots, plan.starts
    else:
        slots_T = np.repeat(plan.slots, counts_N)
        first_T = np.repeat(plan.starts - query_start[:-1], counts_N)
        positions_T = np.arange(query_start[-1], dtype=np.int32) + first_T
    blocks_T = slots.block_table[slots_T, positions_T // block_size].astype(np.int64)
    kv_slots_T = blocks_T * block_size + positions_T % block_size
    # The last token of a row has seen all that the row computed: it tells whether that is sound.
    wanted_N = query_start[1:] - 1
    used_blocks = -(-int(ends_N.max()) // block_size)

    def on_device(values: np.ndarray) -> torch.Tensor:
        return slots.to_device(np.ascontiguousarray(values))

    places_T = on_device(positions_T.astype(np.int64))
    return TokenBatch(
        token_ids=slots.tokens[on_device(slots_T.astype(np.int64)), places_T].long(),
        positions=places_T,
        slots=on_device(kv_slots_T),
        attention=AttentionBatch(
            query_start=on_device(query_start),
            context_lengths=on_device(ends_N.astype(np.int32)),
            block_table=on_device(slots.block_table[plan.slots, :used_blocks]),
        ),
        wanted=on_device(wanted_N.astype(np.int64)),
    )
