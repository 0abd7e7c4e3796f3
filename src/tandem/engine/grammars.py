"""Grammar masks: which tokens may follow in answers with a structure, computed by a thread of their
own, from the draw of one token until that of the next.

What a grammar allows depends on the answer so far alone, so a resumed sequence goes on under the
same masks. Nothing here knows what a grammar is: it asks a matcher.
Axes: R rows that draw, V vocabulary, W words of 32 tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.engine.drafts import Draws
from tandem.facts.steps import Placement
from tandem.facts.token_tree import TokenTree
from tandem.kernels.masking import MaskLogits
from tandem.kernels.sampling import NO_TOKEN


class GrammarMatcher(Protocol):
    """How far the answer of one sequence is in its grammar."""

    def consume(self, tokens: Sequence[int]) -> None:
        """The answer goes on with these. What a grammar does not allow, no later mask forgives."""
        ...

    def allows(self, tokens: Sequence[int]) -> int:
        """How many of these, from the first on, the answer may go on with."""
        ...

    def rollback(self, tokens: int) -> None:
        """As if the last so many had not been consumed."""
        ...


class Grammars(Protocol):
    """Used by one thread at a time."""

    def begin(self, grammar: str) -> GrammarMatcher:
        """For an answer without tokens so far."""
        ...

    def fill_masks(self, matchers: Sequence[Any], allowed_RW: NDArray[np.int32]) -> None:
        """For matchers that began here, set the bits of the tokens that may come next, and of no
        other: of none where that is too costly to say. Lets other threads run meanwhile."""
        ...


class NoGrammars:
    """Of an engine whose requests have none."""

    def begin(self, grammar: str) -> GrammarMatcher:
        raise AssertionError(f"this engine takes no grammars: {grammar[:64]}")

    def fill_masks(self, matchers: Sequence[Any], allowed_RW: NDArray[np.int32]) -> None:
        raise AssertionError(f"{len(matchers)} grammars, {len(allowed_RW)} masks")


@dataclass(slots=True)
class _Constrained:
    """A sequence with a grammar. The mask of its token at `position` is row `row` of `masks`
    [R, W], a bit for each token that may come. Those of the tokens behind its drafts are
    `draft_masks`, a row each."""

    matcher: "Future[GrammarMatcher]"
    position: int
    masks: "Future[Tensor]"
    row: int = 0
    draft_masks: "Future[Tensor] | None" = None

    def mask(self, number: int) -> Tensor:
        """allowed_1W of its next token (0), or of that behind draft `number` - 1."""
        if not number:
            return self.masks.result()[self.row : self.row + 1]
        assert self.draft_masks is not None
        return self.draft_masks.result()[number - 1 : number]


class GrammarMasks:
    """By slot; a slot's grammar is replaced when a sequence is placed in it. `load` is called once,
    by the thread, before anything is asked for; `vocabulary_tokens` is the width of the logits."""

    def __init__(
        self,
        load: Callable[[], Grammars],
        slots: int,
        vocabulary_tokens: int,
        mask_logits: MaskLogits,
    ) -> None:
        self._mask_logits = mask_logits
        self._mask_words = -(-vocabulary_tokens // 32)
        self._constrained: list[_Constrained | None] = [None] * slots
        # Most of the time none has a grammar, and then nothing shall be spent on them.
        self._constrained_slots: set[int] = set()
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._grammars = self._thread.submit(load)

    def place(self, placements: Iterable[Placement]) -> None:
        """Sequences take slots, with grammars or without."""
        for placement in placements:
            grammar = placement.sampling.grammar
            if not grammar:
                self._constrained[placement.slot] = None
                self._constrained_slots.discard(placement.slot)
                continue
            answer = placement.tokens[placement.prompt_tokens :].tolist()
            matcher = self._thread.submit(self._begin, grammar, answer)
            masks_RW = self._thread.submit(self._masks, [matcher])
            self._constrained[placement.slot] = _Constrained(
                matcher, len(placement.tokens), masks_RW
            )
            self._constrained_slots.add(placement.slot)

    def drafts_placed(self, draws: Draws) -> None:
        """Of sequences that check drafts, the masks behind each of these are asked for now."""
        if draws.draft_counts is None or not self._constrained_slots:
            return
        for slot, drafts in zip(draws.row_slots.tolist(), draws.drafts, strict=True):
            sequence = self._constrained[slot]
            if sequence is not None and len(drafts):
                sequence.draft_masks = self._thread.submit(
                    self._draft_masks, sequence.matcher, drafts
                )

    def apply(self, logits_RV: Tensor, draws: Draws) -> None:
        """For the tokens of these draws; waits for what is not known yet. Unlike of what is banned,
        nothing remains of what a grammar forbids, so that it wins against bans; and a NaN stays
        one."""
        if not self._constrained_slots:
            return
        row_slots, numbers = draws.slots, draws.numbers.tolist()
        for row, slot in enumerate(row_slots.tolist()):
            sequence = self._constrained[slot]
            if sequence is not None:
                if not row and self._aligned(row_slots):
                    allowed_RW = sequence.masks.result()
                    if len(allowed_RW) == len(logits_RV):
                        self._mask(logits_RV, allowed_RW)
                        return
                self._mask(logits_RV[row : row + 1], sequence.mask(numbers[row]))

    def _mask(self, logits_RV: Tensor, allowed_RW: Tensor) -> None:
        self._mask_logits(logits_RV, allowed_RW.to(logits_RV.device, non_blocking=True))

    def tokens_drawn(self, row_slots: np.ndarray, tokens_R: Tensor) -> None:
        """What may follow these is asked for now: they are there, or will be when what was launched
        on their device is done."""
        going_on = self._going_on(row_slots)
        if not going_on:
            return
        rows = [row for row, _ in going_on]
        arriving = _Arriving(tokens_R)

        def drawn() -> list[Sequence[int]]:
            tokens = arriving.tokens()
            # Behind its end an answer may have no token; a step may be under way even so.
            return [() if tokens[row] == NO_TOKEN else (tokens[row],) for row in rows]

        self._ask([sequence for _, sequence in going_on], drawn, [1] * len(going_on))

    def tokens_kept(self, draws: Draws, tokens: Sequence[int], kept: Sequence[int]) -> None:
        """As `tokens_drawn`, of a step that checked drafts: so many `tokens` of each row count."""
        going_on = self._going_on(draws.row_slots)
        if not going_on:
            return
        ends = list(accumulate(kept))
        drawn: list[Sequence[int]] = []
        for row, _ in going_on:
            row_tokens = tokens[ends[row] - kept[row] : ends[row]]
            drawn.append([token for token in row_tokens if token != NO_TOKEN])
        counts = [kept[row] for row, _ in going_on]
        self._ask([sequence for _, sequence in going_on], lambda: drawn, counts)

    def _going_on(self, row_slots: np.ndarray) -> list[tuple[int, _Constrained]]:
        """Of these rows, those with a grammar."""
        if not self._constrained_slots:
            return []
        return [
            (row, sequence)
            for row, slot in enumerate(row_slots.tolist())
            if (sequence := self._constrained[slot]) is not None
        ]

    def _ask(
        self,
        sequences: Sequence[_Constrained],
        drawn: Callable[[], list[Sequence[int]]],
        counts: Sequence[int],
    ) -> None:
        """For the masks of the tokens behind these."""
        matchers = [sequence.matcher for sequence in sequences]
        masks_RW = self._thread.submit(self._masks, matchers, drawn)
        for row, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            sequence.position += count
            sequence.masks, sequence.row, sequence.draft_masks = masks_RW, row, None

    def _aligned(self, row_slots: np.ndarray) -> bool:
        """Whether the masks of one look are those of all rows, in their order."""
        sequences = [self._constrained[slot] for slot in row_slots.tolist()]
        first = sequences[0]
        return first is not None and all(
            each is not None and each.masks is first.masks and each.row == row
            for row, each in enumerate(sequences)
        )

    def _begin(self, grammar: str, answer: Sequence[int]) -> GrammarMatcher:
        matcher = self._grammars.result().begin(grammar)
        matcher.consume(answer)
        return matcher

    def _masks(
        self,
        matchers: Sequence["Future[GrammarMatcher]"],
        drawn: Callable[[], list[Sequence[int]]] | None = None,
    ) -> Tensor:
        """Row by row, after the tokens that were `drawn` of each."""
        # Made by now: the thread does one thing after the other.
        begun = [matcher.result() for matcher in matchers]
        if drawn is not None:
            for matcher, tokens in zip(begun, drawn(), strict=True):
                if tokens:
                    matcher.consume(tokens)
        allowed_RW = np.empty((len(begun), self._mask_words), np.int32)
        self._grammars.result().fill_masks(begun, allowed_RW)
        return torch.from_numpy(allowed_RW)

    def _draft_masks(self, future: "Future[GrammarMatcher]", drafts: TokenTree) -> Tensor:
        """Draft by draft, as if it were kept. Behind one that the grammar does not allow, and which
        is not drawn therefore, anything goes."""
        matcher, grammars = future.result(), self._grammars.result()
        allowed_RW = np.full((len(drafts), self._mask_words), -1, np.int32)
        consumed: list[int] = []
        allowed = {-1}
        for number, token in enumerate(drafts.tokens):
            if drafts.parent(number) not in allowed:
                continue
            *before, _ = drafts.path(number)
            shared = common_length(consumed, before)
            matcher.rollback(len(consumed) - shared)
            matcher.consume([drafts.tokens[each] for each in before[shared:]])
            consumed = before
            if matcher.allows((token,)):
                matcher.consume((token,))
                grammars.fill_masks([matcher], allowed_RW[number : number + 1])
                consumed = [*before, number]
                allowed.add(number)
        matcher.rollback(len(consumed))
        return torch.from_numpy(allowed_RW)


class _Arriving:
    """Tokens on their way from the device, behind what was launched there before."""

    def __init__(self, tokens_R: Tensor) -> None:
        self._tokens_R = tokens_R.to("cpu", non_blocking=True)
        self._copied = None
        if tokens_R.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def tokens(self) -> list[int]:
        if self._copied is not None:
            self._copied.synchronize()
        found: list[int] = self._tokens_R.tolist()
        return found


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Of the prefix that both have."""
    pairs = enumerate(zip(one, other, strict=False))
    differing = (at for at, (left, right) in pairs if left != right)
    return next(differing, min(len(one), len(other)))
