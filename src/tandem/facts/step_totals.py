"""What a worker's steps took so far, by their size: what its cost model is compared with; and what
came of its drafts."""

from itertools import zip_longest
from typing import Annotated

from msgspec import Meta, Struct

# Products of tokens and steps of years.
LargeCount = Annotated[int, Meta(ge=0, lt=1 << 62)]


class StepTotals(Struct, frozen=True, array_like=True):
    """All steps since the worker's start whose tokens are a number of `magnitude` bits, and that
    held chunks of prompts (`chunked`) or decodes alone: how many, their nanoseconds from the later
    of their launch and the landing before, and what was in them. `attended_pairs` are the
    query-key pairs of chunks; the rows of one token attend to `context_tokens`. A row of one token
    with its drafts is a decode where no prompt is in the step: of these, `kept_drafts` tokens were
    gained without a step of their own."""

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
    kept_drafts: LargeCount = 0

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
            self.kept_drafts - earlier.kept_drafts,
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

    def plus(self, other: "DraftTotals") -> "DraftTotals":
        """What came of both."""
        return self._with(other, 1)

    def since(self, earlier: "DraftTotals") -> "DraftTotals":
        """What came of drafts after an earlier look."""
        return self._with(earlier, -1)

    def _with(self, other: "DraftTotals", sign: int) -> "DraftTotals":
        places = zip_longest(self.accepted_by_place, other.accepted_by_place, fillvalue=0)
        return DraftTotals(
            self.drafts + sign * other.drafts,
            self.draft_tokens + sign * other.draft_tokens,
            self.accepted_tokens + sign * other.accepted_tokens,
            tuple(own + sign * others for own, others in places),
            self.declined + sign * other.declined,
        )


NO_DRAFTS_YET = DraftTotals()
