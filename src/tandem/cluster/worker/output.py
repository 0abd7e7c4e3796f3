"""Output of a finished step: the tokens that were drawn, and the KV that another worker may read
now. A sequence whose drafts were kept has several tokens, one row each, in their order."""

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from itertools import islice

from tandem.cluster.worker.block_pool import BlockPool
from tandem.cluster.worker.plan_builder import PlanBuilder
from tandem.cluster.worker.sequence import Phase, Sequence
from tandem.facts.request import FinishReason, TokenLogprobs
from tandem.facts.steps import StepResult
from tandem.messages.worker import EmitTokens, KvComputed, WorkerEffect

PromptLogprobs = tuple[TokenLogprobs, ...] | None


def landed_rows(builder: PlanBuilder, result: StepResult) -> Iterator[tuple[Sequence, int, range]]:
    """Row by row, the end of the tokens whose KV is sound, and which tokens of the result are the
    row's: of the drafts those that are what was drawn, and the token behind them."""
    drawn = 0
    if not result.token_counts:
        for (sequence, end_tokens, draws), drafted in zip(
            builder.rows, builder.draft_counts, strict=True
        ):
            yield sequence, end_tokens - drafted, range(drawn, drawn + draws)
            drawn += draws
        return
    counts = iter(result.token_counts)
    for (sequence, end_tokens, draws), drafted in zip(
        builder.rows, builder.draft_counts, strict=True
    ):
        count = next(counts) if draws else 0
        kept = max(0, count - 1)
        yield sequence, end_tokens - drafted + kept, range(drawn, drawn + count)
        drawn += count


def draws_one_each(builder: PlanBuilder, result: StepResult) -> bool:
    """Whether all there is of the result is one token for each row, without drafts before it."""
    if builder.drafted_tokens or result.token_counts or result.logprobs or result.failed_rows:
        return False
    return len(result.tokens) == len(builder.rows)


def take_prompt_scores(builder: PlanBuilder, result: StepResult) -> None:
    """Give each sequence the scores of its prompt tokens that the step computed; those of a
    sequence that has left its slot meanwhile are as good as any."""
    scores = iter(result.prompt_logprobs)
    for (sequence, _, _), count in zip(builder.rows, builder.scored_counts, strict=True):
        if count:
            assert sequence.prompt_scores is not None
            sequence.prompt_scores += islice(scores, count)


class StepOutput:
    """The columns of one `EmitTokens` while a landed step is read."""

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs | None] = []
        # What few rows have, by row.
        self.ends: dict[int, tuple[FinishReason, bool]] = {}
        self.prompt_logprobs: dict[int, PromptLogprobs] = {}
        self.waited_ns: dict[int, int] = {}

    def take(self, sequence: Sequence, token: int) -> bool:
        """Give the sequence a token that was drawn for it. Whether it ends with that."""
        reason, stopped = sequence.append(token)
        if sequence.prompt_scores is not None:
            self.prompt_logprobs[len(self.tokens)] = sequence.take_prompt_scores()
        if sequence.waited_ns:
            self.waited_ns[len(self.tokens)] = sequence.waited_ns
            sequence.waited_ns = 0
        if reason is not None:
            self.ends[len(self.tokens)] = reason, stopped
        self.sequences.append(sequence)
        self.tokens.append(token)
        return reason is not None

    def take_all(self, sequence: Sequence, result: StepResult, drawn: range) -> bool:
        """The same of these tokens of a result, up to one that ends it."""
        for index in drawn:
            if result.logprobs:
                self.logprobs.append(result.logprobs[index])
            if self.take(sequence, result.tokens[index]):
                return True
        return False

    def effects(self) -> list[WorkerEffect]:
        """One `EmitTokens`, or nothing when no token was taken."""
        if not self.sequences:
            return []
        rows = len(self.tokens)
        reasons: list[FinishReason | None] = [None] * rows
        stopped = [False] * rows
        for row, (reason, by_token) in self.ends.items():
            reasons[row], stopped[row] = reason, by_token
        prompts, waits = self.prompt_logprobs, self.waited_ns
        return [
            EmitTokens(
                request_ids=tuple([each.request.request_id for each in self.sequences]),
                tokens=tuple(self.tokens),
                finish_reasons=tuple(reasons),
                stopped_by_token=tuple(stopped),
                cached_tokens=tuple([each.prefix_hit.cached_tokens for each in self.sequences]),
                logprobs=tuple(self.logprobs),
                prompt_logprobs=tuple(map(prompts.get, range(rows))) if prompts else (),
                waited_ns=tuple([waits.get(row, 0) for row in range(rows)]) if waits else (),
            )
        ]


def rows_of(emission: EmitTokens, rows: Ordered[int]) -> EmitTokens:
    """Only these rows of it."""
    logprobs, prompts = emission.logprobs, emission.prompt_logprobs
    waits = [emission.waited_ns[row] for row in rows] if emission.waited_ns else []
    return EmitTokens(
        request_ids=tuple(emission.request_ids[row] for row in rows),
        tokens=tuple(emission.tokens[row] for row in rows),
        finish_reasons=tuple(emission.finish_reasons[row] for row in rows),
        stopped_by_token=tuple(emission.stopped_by_token[row] for row in rows),
        cached_tokens=tuple(emission.cached_tokens[row] for row in rows),
        logprobs=tuple(logprobs[row] for row in rows) if logprobs else (),
        prompt_logprobs=_unless_none([prompts[row] for row in rows] if prompts else ()),
        waited_ns=tuple(waits) if any(waits) else (),
    )


def _unless_none(columns: Ordered[PromptLogprobs]) -> tuple[PromptLogprobs, ...]:
    """Mostly nobody has asked."""
    return tuple(columns) if any(each is not None for each in columns) else ()


def report_kv(sequences: list[Sequence], pool: BlockPool) -> list[WorkerEffect]:
    """What may be read of these sequences, which hand over; those that have ended are left out."""
    versions = pool.versions
    whole = [s for s in sequences if s.phase in (Phase.RUNNING, Phase.PINNED)]
    if not whole:
        return []
    return [
        KvComputed(
            request_ids=tuple(sequence.request.request_id for sequence in whole),
            tokens=tuple(sequence.residency.confirmed for sequence in whole),
            blocks=tuple(tuple(sequence.residency.blocks) for sequence in whole),
            held=tuple(sequence.phase is Phase.PINNED for sequence in whole),
            versions=tuple(
                tuple([versions[block] for block in sequence.residency.blocks])
                for sequence in whole
            ),
        )
    ]


def report_copies(
    sequences: list[Sequence], pool: BlockPool, block_size: int
) -> list[WorkerEffect]:
    """What may be read of these by now while they go on here; nothing of those without a whole
    block of KV."""
    readable, effects = [], list[WorkerEffect]()
    for sequence in sequences:
        if sequence.phase is Phase.RUNNING and sequence.residency.confirmed >= block_size:
            sequence.residency.copied = True
            readable.append(sequence)
        else:
            effects.append(report_lost_kv(sequence))
    return effects + report_kv(readable, pool)


def report_lost_kv(sequence: Sequence) -> KvComputed:
    """Nothing of this sequence may be read any more."""
    return KvComputed((sequence.request.request_id,), (0,), ((),), (False,), ((),))
