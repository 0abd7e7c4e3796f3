"""Grammar masks: which tokens may follow in answers with a structure, computed by a thread of their
own, from the draw of one token until that of the next.

What a grammar allows depends on the answer so far alone, so a resumed sequence goes on under the
same masks. Nothing here knows what a grammar is: it asks a matcher.
Axes: R rows that draw, V vocabulary, W words of 32 tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.facts.steps import Placement
from tandem.kernels.sampling import NO_TOKEN


class GrammarMatcher(Protocol):
    """How far the answer of one sequence is in its grammar."""

    def consume(self, tokens: Sequence[int]) -> None:
        """The answer goes on with these. What a grammar does not allow, no later mask forgives."""
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
    [R, V]: 0 for what may come, else minus infinity."""

    matcher: "Future[GrammarMatcher]"
    position: int
    masks: "Future[Tensor]"
    row: int = 0


class GrammarMasks:
    """By slot; a slot's grammar is replaced when a sequence is placed in it. `load` is called once,
    by the thread, before anything is asked for; `vocabulary_tokens` is the width of the logits."""

    def __init__(self, load: Callable[[], Grammars], slots: int, vocabulary_tokens: int) -> None:
        self._vocabulary_tokens = vocabulary_tokens
        self._constrained: list[_Constrained | None] = [None] * slots
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._grammars = self._thread.submit(load)

    def place(self, placements: Iterable[Placement]) -> None:
        """Sequences take slots, with grammars or without."""
        for placement in placements:
            grammar = placement.sampling.grammar
            if not grammar:
                self._constrained[placement.slot] = None
                continue
            answer = placement.tokens[placement.prompt_tokens :].tolist()
            matcher = self._thread.submit(self._begin, grammar, answer)
            masks_RV = self._thread.submit(self._masks, [matcher])
            self._constrained[placement.slot] = _Constrained(
                matcher, len(placement.tokens), masks_RV
            )

    def apply(self, logits_RV: Tensor, row_slots: np.ndarray, positions: np.ndarray) -> None:
        """For the tokens at `positions` of the sequences in `row_slots`; waits for what is not
        known yet. Unlike of what is banned, nothing remains of what a grammar forbids, so that it
        wins against bans; and a NaN stays one."""
        for row, slot in enumerate(row_slots.tolist()):
            sequence = self._constrained[slot]
            if sequence is not None:
                assert sequence.position == positions[row]
                masks_RV = sequence.masks.result()
                if len(masks_RV) == len(logits_RV) and not row and self._aligned(row_slots):
                    logits_RV += masks_RV.to(logits_RV.device, non_blocking=True)
                    return
                mask_V = masks_RV[sequence.row].to(logits_RV.device, non_blocking=True)
                logits_RV[row] += mask_V

    def tokens_drawn(self, row_slots: np.ndarray, tokens_R: Tensor) -> None:
        """What may follow these is asked for now: they are there, or will be when what was launched
        on their device is done."""
        going_on = [
            (sequence, row)
            for row, slot in enumerate(row_slots.tolist())
            if (sequence := self._constrained[slot]) is not None
        ]
        if not going_on:
            return
        sequences, rows = zip(*going_on, strict=True)
        matchers = [sequence.matcher for sequence in sequences]
        drawn = _Arriving(tokens_R)
        masks_RV = self._thread.submit(self._masks, matchers, drawn, rows)
        for row, sequence in enumerate(sequences):
            sequence.position += 1
            sequence.masks, sequence.row = masks_RV, row

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
        drawn: "_Arriving | None" = None,
        rows: Sequence[int] = (),
    ) -> Tensor:
        """Row by row, after the tokens that were `drawn` in these `rows`."""
        # Made by now: the thread does one thing after the other.
        begun = [matcher.result() for matcher in matchers]
        if drawn is not None:
            tokens = drawn.tokens()
            for matcher, row in zip(begun, rows, strict=True):
                # Behind its end an answer may have no token; a step may be under way even so.
                if tokens[row] != NO_TOKEN:
                    matcher.consume((tokens[row],))
        allowed_RW = np.empty((len(begun), -(-self._vocabulary_tokens // 32)), np.int32)
        self._grammars.result().fill_masks(begun, allowed_RW)
        masks_RV = _FORBIDDEN[allowed_RW.view(np.uint8)].reshape(len(matchers), -1)
        return torch.from_numpy(masks_RV[:, : self._vocabulary_tokens])


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


# For each byte of a mask, what its bits add to eight logits.
_FORBIDDEN = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    np.float32(0),
    np.float32(-np.inf),
)
