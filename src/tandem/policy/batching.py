"""Batching: which sequences share the next step, and how many tokens of each.

A sequence has tokens scheduled and a target; prefill, decode, prefix hits and resumption are all
"scheduled < target". Steps mix decodes with chunks of prompts under one token budget, so that a
long prompt never stops the others from talking (chunked prefill, after Sarathi-Serve).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Protocol, TypeVar

from tandem.facts.slo import IN_BACKGROUND

Rank = tuple[int, int, int]
# Of a sequence without a deadline.
NEVER_NS = 2**63 - 1
BACKGROUND_TOKENS = 64
# Rows from which on a CPU computes, and no longer waits for weights: more in a step are no faster.
CPU_ROWS = 16


class SequenceView(Protocol):
    """What batching may know of a sequence. `rank` orders by priority, arrival and a serial
    number; the smallest runs first and is preempted last. It belongs to an `account`, and is due at
    `due_ns`."""

    @property
    def rank(self) -> Rank: ...

    @property
    def account(self) -> str: ...

    @property
    def due_ns(self) -> int: ...

    @property
    def pending_tokens(self) -> int: ...


View = TypeVar("View", bound=SequenceView)


@dataclass(frozen=True, slots=True)
class TokenBudgetBatching:
    """The one batching policy: decodes first, then prompts by rank, until the budget is spent.

    `max_batched_tokens` bounds a step; `max_prefill_chunk_tokens` bounds one prompt's share of it
    (0: only the budget does). `enough_prompt_tokens` keep the device busy: a step that has
    `enough_tokens` takes nothing of another prompt (0: it does), for of several prompts in one step
    none would be done before the last is.
    """

    max_batched_tokens: int
    max_prefill_chunk_tokens: int = 0
    enough_prompt_tokens: int = 0

    @classmethod
    def on(
        cls, device: str, max_batched_tokens: int, max_prefill_chunk_tokens: int = 0
    ) -> "TokenBudgetBatching":
        """For a worker on this kind of device."""
        enough = CPU_ROWS if device == "cpu" else 0
        return cls(max_batched_tokens, max_prefill_chunk_tokens, enough)

    def decodes_and_prefills(self, running: Iterable[View]) -> tuple[list[View], list[View]]:
        """The running sequences with work to do, each list by rank as `running` is.

        Decodes go first: one costs a single token of the budget, and delays a whole stream when
        left out; a prompt's chunk does neither.
        """
        decodes: list[View] = []
        prefills: list[View] = []
        for view in running:
            pending_tokens = view.pending_tokens
            if pending_tokens == 1:
                decodes.append(view)
            elif pending_tokens > 1:
                prefills.append(view)
        return decodes, prefills

    def chunk_tokens(self, pending_tokens: int, budget_tokens: int) -> int:
        """How many of a sequence's pending tokens this step computes; 0 when the budget is out."""
        chunk_tokens = min(pending_tokens, budget_tokens)
        if self.max_prefill_chunk_tokens and chunk_tokens > self.max_prefill_chunk_tokens:
            return self.max_prefill_chunk_tokens
        return chunk_tokens

    def enough_tokens(self, prompt_tokens: int, decodes: int) -> int:
        """With so many tokens of prompts a step takes none of another prompt, where `prompt_tokens`
        are to be computed in all, and each step has a row for each of `decodes`.

        Steps of e tokens each last as long as D + e rows, and on average a prompt waits for half of
        P / e + 1 of them: least where e is the root of P * D.
        """
        if not self.enough_prompt_tokens:
            return self.max_batched_tokens
        return max(self.enough_prompt_tokens, isqrt(prompt_tokens * decodes))

    def background_tokens(self, firsts: Iterable[View]) -> int:
        """How many tokens of prompts in the background a step takes at most, where these are the
        first to run and to wait: few while anybody waits for a token, which they make come later.
        """
        awaited = any(view.rank[0] < IN_BACKGROUND for view in firsts)
        return BACKGROUND_TOKENS if awaited else self.max_batched_tokens

    def victim(self, candidates: Sequence[View]) -> View:
        """Who gives up its blocks first: of the account of whoever is last by rank, and as little
        urgent, the one that is due last. Without deadlines that is the last by rank, which mostly
        has least to compute again. A client's deadline harms nobody else."""
        last = max(candidates, key=lambda view: view.rank)
        mates = [
            view
            for view in candidates
            if view.account == last.account and view.rank[0] == last.rank[0]
        ]
        return max(mates, key=lambda view: (view.due_ns, view.rank))

    def reserve_blocks(self, running: int) -> int:
        """Free blocks to keep when admitting beside `running` sequences: each of them will want a
        block soon, and admitting into that space would only preempt it again."""
        return running

    def outranks(self, one: SequenceView, other: SequenceView) -> bool:
        """Whether one may push the other out, or go before its prompt: by priority alone, never by
        age, so that two sequences cannot push each other out in turns."""
        return one.rank[0] < other.rank[0]
