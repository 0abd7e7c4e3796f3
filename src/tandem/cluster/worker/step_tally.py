"""Counts what the steps of a worker took, for gateways that compare it with their cost model."""

from collections.abc import Sequence

from msgspec import Struct

from tandem.facts.step_totals import StepTotals


class StepWork(Struct):
    """What one step computes: chunks of prompts with their query-key pairs, and `decodes` rows of
    one token that attend to `context_tokens` in all. Beside prompts, rows with drafts are chunks as
    they are; without any, they are decodes that may get several tokens."""

    chunks: int
    prompt_tokens: int
    attended_pairs: int
    decodes: int
    context_tokens: int
    sampled_rows: int


def work_of(
    starts: Sequence[int], counts: Sequence[int], sampled_rows: int, drafts: int = 0
) -> StepWork:
    """Of a step whose row i computes `counts[i]` tokens after `starts[i]`, among them `drafts` in
    all, and `sampled_rows` with theirs."""
    rows = len(counts)
    if sum(counts) - drafts == rows:
        return StepWork(0, 0, 0, rows, sum(starts) + rows, sampled_rows - drafts)
    work = StepWork(0, 0, 0, 0, 0, sampled_rows)
    for start, count in zip(starts, counts, strict=True):
        if count > 1:
            work.chunks += 1
            work.prompt_tokens += count
            work.attended_pairs += count * start + count * (count + 1) // 2
        else:
            work.decodes += 1
            work.context_tokens += start + 1
    return work


class StepTally:
    """Sums by kind and size of steps: the time of a step is nearly linear in what it computes only
    among steps of about one size. A step lasts from its launch, or from the landing of the one
    before where that is later; steps of a pipeline overlap, and are not counted."""

    def __init__(self, pipeline_stages: int) -> None:
        self._counts = pipeline_stages == 1
        self._landed_ns = 0
        self._sums: dict[tuple[bool, int], list[int]] = {}
        self._totals: tuple[StepTotals, ...] | None = ()

    @property
    def totals(self) -> tuple[StepTotals, ...]:
        """Since the start; the same object as long as nothing has landed."""
        if self._totals is None:
            self._totals = tuple(StepTotals(*key, *self._sums[key]) for key in sorted(self._sums))
        return self._totals

    def step_landed(
        self, work: StepWork, launched_ns: int, landed_ns: int, kept_drafts: int = 0
    ) -> None:
        """One step, in which so many drafts were kept."""
        self._add(work, 1, work.context_tokens, launched_ns, landed_ns, kept_drafts)

    def steps_landed(self, work: StepWork, steps: int, launched_ns: int, landed_ns: int) -> None:
        """Decode steps of the same sequences in a row: `work` is of the first of them."""
        grown = work.decodes * (steps * (steps - 1) // 2)
        self._add(work, steps, steps * work.context_tokens + grown, launched_ns, landed_ns)

    def _add(
        self,
        work: StepWork,
        steps: int,
        context_tokens: int,
        launched_ns: int,
        landed_ns: int,
        kept_drafts: int = 0,
    ) -> None:
        if not self._counts:
            return
        began_ns = max(launched_ns, self._landed_ns)
        self._landed_ns = landed_ns
        key = (work.chunks > 0, (work.prompt_tokens + work.decodes).bit_length())
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = [0] * 9
        sums[0] += steps
        sums[1] += max(0, landed_ns - began_ns)
        sums[2] += work.chunks
        sums[3] += work.prompt_tokens
        sums[4] += work.attended_pairs
        sums[5] += steps * work.decodes
        sums[6] += context_tokens
        sums[7] += steps * work.sampled_rows
        sums[8] += kept_drafts if not work.chunks else 0
        self._totals = None
