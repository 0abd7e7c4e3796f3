"""What a worker's steps took so far, by their size: what its cost model is compared with; and what
came of its drafts."""

from typing import Annotated

from msgspec import Meta, Struct

# Products of tokens and steps of years.
LargeCount = Annotated[int, Meta(ge=0, lt=1 << 62)]


class StepTotals(Struct, frozen=True, array_like=True):
    """All steps since the worker's start whose tokens are a number of `magnitude` bits, and that
    held chunks of prompts (`chunked`) or decodes alone: how many, their nanoseconds from the later
    of their launch and the landing before, and what was in them. `attended_pairs` are the
    query-key pairs of chunks; the rows of one token attend to `context_tokens`."""

    chunked: bool
    magnitude: Annotated[int, Meta(ge=0, le=64)]
    steps: LargeCount
    duration_ns: LargeCount
    chunks: LargeCount
    prompt_tokens: LargeCount
    attended_pairs: LargeCount
    decodes: LargeCount
    context_tokens: LargeCount
    sampled_rows: LargeCount

    def since(self, earlier: "StepTotals") -> "StepTotals":
        """The steps after those of an earlier look."""
        return StepTotals(
            self.chunked,
            self.magnitude,
            self.steps - earlier.steps,
            self.duration_ns - earlier.duration_ns,
            self.chunks - earlier.chunks,
            self.prompt_tokens - earlier.prompt_tokens,
            self.attended_pairs - earlier.attended_pairs,
            self.decodes - earlier.decodes,
            self.context_tokens - earlier.context_tokens,
            self.sampled_rows - earlier.sampled_rows,
        )


class DraftTotals(Struct, frozen=True):
    """What came of a worker's drafts since its start: rows of steps that checked some, draft tokens
    that were checked and kept, in all and by their place behind the last known token; and rows
    without, because drafts would have cost more than they bring."""

    drafts: LargeCount = 0
    draft_tokens: LargeCount = 0
    accepted_tokens: LargeCount = 0
    accepted_by_place: tuple[LargeCount, ...] = ()
    declined: LargeCount = 0
