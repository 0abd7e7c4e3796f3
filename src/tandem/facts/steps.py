"""One engine step: the plan that goes in, the tokens that come out.

A plan carries differences only. The engine keeps, for every slot, the tokens, the sampling
parameters and the block table; plans are executed strictly in the order of their ids, which is
why a block or slot freed by one plan may be reused by the next.
"""

from array import array

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tandem.facts.adapter import Adapter
from tandem.facts.request import TokenLogprobs
from tandem.facts.sampling import SamplingParameters
from tandem.facts.token_tree import TokenTree

IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


class Placement(Struct, frozen=True):
    """A sequence takes a slot: all its tokens known so far (unsigned 32-bit), the first
    `prompt_tokens` of which are the client's; and the adapter that computes it, if one does."""

    slot: int
    request_id: str
    tokens: "array[int]"
    prompt_tokens: int
    sampling: SamplingParameters
    adapter: Adapter | None = None


# Drafts of one sequence: what is gained beyond is little, and each asks for room.
MOST_DRAFT_TOKENS = 16
# Of which logits are computed at one time where prompts are scored: all of a prompt would be a
# gigabyte where the vocabulary is large, and more rows compute no faster.
MOST_SCORED_TOKENS = 64
# Of a step without drafts.
NO_TOKENS: IntArray = np.empty(0, np.int32)


def scratch_blocks(block_size: int) -> int:
    """KV blocks that a draft model needs for each sequence beside those of the pool: for tokens
    whose blocks are not handed out yet."""
    return -(-MOST_DRAFT_TOKENS // block_size) + 1


class StepPlan(Struct, frozen=True):
    """Row i computes tokens `starts[i] .. starts[i] + counts[i]` of the sequence in `slots[i]`, and
    draws the token after them where `samples[i]`.

    `table_blocks[j]` becomes entry `table_indices[j]` of the block table of `table_slots[j]`.
    The last `draft_counts[i]` tokens of row i are drafts, which stand in `draft_tokens`, row after
    row: the row draws the token in the place of each, too. They are chains, or trees as the
    `draft_parents` say (see `TokenTree`; parallel to `draft_tokens`, empty where all are chains).
    `proposals[i]` drafts are wanted of row i for the next step. Both counts are of the rows that
    draw; empty where all are 0.
    The tokens behind the first `scored_counts[i]` of row i are known, of a prompt, and are scored:
    empty where all counts are 0.
    All arrays are int32 but `samples`, which is bool.
    """

    step_id: int
    placements: tuple[Placement, ...]
    slots: IntArray
    starts: IntArray
    counts: IntArray
    samples: BoolArray
    table_slots: IntArray
    table_indices: IntArray
    table_blocks: IntArray
    draft_counts: IntArray = NO_TOKENS
    draft_tokens: IntArray = NO_TOKENS
    draft_parents: IntArray = NO_TOKENS
    proposals: IntArray = NO_TOKENS
    scored_counts: IntArray = NO_TOKENS

    @property
    def batched_tokens(self) -> int:
        # Up to about a hundred rows an array's own sum takes longer.
        return sum(self.counts.tolist())


class StepResult(Struct, frozen=True):
    """The tokens drawn by the sampling rows of plan `step_id`, in the order of its rows.

    Row by row `token_counts` tokens: one, and one more for each draft that is what was drawn in its
    place (empty: one each). `logprobs` is parallel to `tokens` with None where none were asked for,
    or empty when no row asked. `proposals` are drafts to go on with, for each sampling row; empty
    where there are none, and never to be trusted. `prompt_logprobs` are of the prompt tokens that
    the plan scores, in the order of its rows. Nothing that `failed_rows` (of all rows of the
    plan) computed may be used, neither KV nor token: the model's numbers were not finite there.
    """

    step_id: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    failed_rows: tuple[int, ...] = ()
    token_counts: tuple[int, ...] = ()
    proposals: tuple[TokenTree, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
