"""The worker machine: the scheduler of one engine. Requests and finished steps in; step plans,
tokens and block events out.

No clock, no engine and no client: events in, effects out. The engine runs plans strictly in order,
so blocks freed here may be reused by the very next plan.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tandem.cluster.audit import invariant
from tandem.cluster.worker.block_pool import BlockPool
from tandem.cluster.worker.output import (
    StepOutput,
    draws_one_each,
    landed_rows,
    report_copies,
    report_kv,
    report_lost_kv,
    take_prompt_scores,
)
from tandem.cluster.worker.plan_builder import PlanBuilder, repeat, repeating_steps
from tandem.cluster.worker.prefetches import Returning
from tandem.cluster.worker.running import RunningSequences
from tandem.cluster.worker.sequence import Phase, Sequence
from tandem.cluster.worker.speculation import Drafting
from tandem.cluster.worker.step_planner import StepPlanner
from tandem.cluster.worker.step_tally import StepTally
from tandem.facts.blocks import CacheRoot, PromptChains
from tandem.facts.errors import InvalidRequest, Overloaded, PromptTooLong, TandemError
from tandem.facts.kv import chain_names
from tandem.facts.request import LONGEST_DEADLINE_S, Request
from tandem.facts.steps import StepResult
from tandem.messages.worker import (
    BlocksPrefetched,
    CancelImport,
    CopiesRequested,
    FailRequest,
    ImportDone,
    ImportsArrived,
    KvTransfersRequested,
    PrefillsArrived,
    PrefixCacheReset,
    Refuse,
    ReportBlocks,
    RequestsAborted,
    RequestsArrived,
    RunStep,
    SessionPaused,
    SessionReturning,
    StepDone,
    TransferPinsReleased,
    WorkerEffect,
    WorkerEvent,
)
from tandem.policy.batching import NEVER_NS, TokenBudgetBatching
from tandem.policy.speculation import Speculation

NO_NUMBERS = "the model's numbers are not finite (NaN) for this request, so it has no next token"
NO_TOKEN_ALLOWED = (
    "the form of the answer allows no token here, is too costly to follow, or the model's numbers "
    "are not finite (NaN)"
)

NO_ADAPTER = (
    "the adapter cannot be read where the model runs, or its numbers are not finite (NaN), so the "
    "request has no next token"
)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """`steps_in_flight` is how many steps may wait behind the one that runs (0 or 1); with 1 the
    next step is decided before the tokens of this one are known. With more than one of
    `pipeline_stages` as many steps are under way at once, each of other sequences. With
    `reports_committed` every full block is reported (`BlocksCommitted`), for who copies them. With
    `speculation` the engine is asked for drafts; a step that checks or makes some is waited for.
    Sequences that run at the same time have `max_adapters` different adapters (0: any number)."""

    block_size: int
    block_count: int
    context_tokens: int
    vocabulary_tokens: int
    max_sequences: int
    batching: TokenBudgetBatching
    root: CacheRoot
    steps_in_flight: int = 1
    prefix_caching: bool = True
    max_waiting: int = 4096
    pipeline_stages: int = 1
    reports_committed: bool = False
    speculation: Speculation | None = None
    max_adapters: int = 0

    def __post_init__(self) -> None:
        # One sequence alone must always fit, or it would be preempted for ever.
        assert self.block_size * self.block_count >= self.context_tokens
        assert self.batching.max_batched_tokens >= self.max_sequences > 0
        assert self.steps_in_flight in (0, 1)
        assert self.pipeline_stages > 0

    @property
    def max_steps_in_flight(self) -> int:
        """Steps that may be under way, the running one included."""
        return max(self.steps_in_flight + 1, self.pipeline_stages)


class WorkerMachine:
    """The scheduler of one engine. `handle(event, now_ns)` gives the effects to perform.
    `unfinished` are the sequences that wait, import or run, by request id. Several machines of one
    simulator may share the hashes of `prompts`. `step_tally` counts what its steps took."""

    def __init__(self, config: WorkerConfig, prompts: PromptChains | None = None) -> None:
        self.config = config
        pool = BlockPool(config.block_count)
        self.sequences = RunningSequences(
            config.max_sequences,
            pool,
            config.block_size,
            keeps_tails=config.prefix_caching,
            reports_committed=config.reports_committed,
        )
        self.drafting = (
            Drafting(config.speculation, config.vocabulary_tokens, config.pipeline_stages)
            if config.speculation
            else None
        )
        self.planner = StepPlanner(
            self.sequences,
            config.batching,
            config.prefix_caching,
            config.pipeline_stages,
            self.drafting,
            config.max_adapters,
        )
        self.unfinished: dict[str, Sequence] = {}
        self.step_tally = StepTally(config.pipeline_stages)
        self._in_flight: deque[PlanBuilder] = deque()
        self._chains = prompts or PromptChains(config.block_size)
        # The newest prompt whose tokens were found to be in the vocabulary.
        self._valid_prompt: Iterable[int] = ()
        self._most_in_flight = config.max_steps_in_flight
        self._steps = 0
        # Something happened since the last plan that the next one may answer.
        self._unplanned = False

    def next_wakeup(self) -> int | None:
        """A worker acts on events only."""
        return None

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits, is held, prefetched or in flight."""
        sequences = self.sequences
        held = sequences.importing or sequences.pinned or not sequences.prefetches.idle
        return not (self.unfinished or self._in_flight or held)

    def handle(self, event: WorkerEvent, now_ns: int) -> list[WorkerEffect]:
        """Take one event; the effects are to be performed in order."""
        # Only what is evicted for paused sessions depends on the instant, and what is told of
        # waits; all else goes by the order of events alone.
        self.sequences.pool.now_ns = now_ns
        effects: list[WorkerEffect] = []
        if isinstance(event, StepDone):
            effects = self._land(event.result, now_ns)
        else:
            self._unplanned = True
            self._take(event, now_ns, effects)
        effects += self._launch(now_ns)
        effects += self.planner.take_imports()
        prefetches = self.sequences.prefetches
        if not prefetches.idle:
            while prefetches.next_starts:
                prefetches.start_next(self.planner.spare_blocks())
            effects += prefetches.take_orders(self.sequences.touched())
        if committed := self.sequences.committed.take():
            effects.append(committed)
        if changes := self.sequences.pool.take_changes():
            effects.append(ReportBlocks(changes))
        return effects

    def _take(self, event: WorkerEvent, now_ns: int, effects: list[WorkerEffect]) -> None:
        """Take an event other than a landed step, which is far more frequent."""
        match event:
            case RequestsArrived(requests):
                for request, tokens in zip(requests, event.imports, strict=True):
                    self._arrive(request, now_ns, effects, tokens)
            case PrefillsArrived(requests, import_tokens):
                for request, tokens in zip(requests, import_tokens, strict=True):
                    if sequence := self._arrive(request, now_ns, effects, tokens):
                        sequence.stop_for_transfer()
            case ImportsArrived(requests, import_tokens):
                for request, tokens in zip(requests, import_tokens, strict=True):
                    self._arrive(request, now_ns, effects, tokens, has_sender=True)
            case ImportDone():
                self._import_done(event)
            case CopiesRequested(request_ids):
                wanted = [self.unfinished[each] for each in request_ids if each in self.unfinished]
                effects += report_copies(wanted, self.sequences.pool, self.config.block_size)
            case KvTransfersRequested(request_ids):
                for request_id in request_ids:
                    if sequence := self.unfinished.get(request_id):
                        if sequence.phase is Phase.RUNNING:
                            sequence.stop_for_transfer()
                        else:
                            effects.append(report_lost_kv(sequence))
            case TransferPinsReleased(request_ids):
                for request_id in request_ids:
                    self.sequences.release_transfer_pin(request_id)
                    if sequence := self.unfinished.get(request_id):
                        sequence.residency.copied = False
            case RequestsAborted(request_ids):
                for request_id in request_ids:
                    if sequence := self.unfinished.get(request_id):
                        self._end(sequence, effects)
            case SessionPaused(session, return_in_ns):
                pool = self.sequences.pool
                pool.pause(session, pool.now_ns + return_in_ns)
            case SessionReturning():
                self._session_returning(event)
            case BlocksPrefetched():
                self.sequences.end_prefetch(event)
            case PrefixCacheReset():
                self.sequences.pool.reset()

    def audit(self) -> None:
        """Assert that nothing is lost: every block, slot and sequence is accounted for."""
        self.sequences.audit()
        sequences = self.sequences
        importing = [s for s in sequences.importing.values() if s.phase is Phase.IMPORTING]
        in_work = len(sequences.running) + len(importing) + len(self.planner.waiting)
        invariant(len(self.unfinished) == in_work, "unfinished requests run, import or wait")

    def _arrive(
        self,
        request: Request,
        now_ns: int,
        effects: list[WorkerEffect],
        import_tokens: int = 0,
        *,
        has_sender: bool = False,
    ) -> Sequence | None:
        if error := self._objection(request) or self._make_way(request, effects):
            effects.append(Refuse(request.request_id, error))
            return None
        rank = self.planner.waiting.rank_of(request)
        root = self.config.root.hash(request.salt)
        due_ns = NEVER_NS
        if request.deadline_s > 0:
            due_ns = now_ns + round(min(request.deadline_s, LONGEST_DEADLINE_S) * 1e9)
        sequence = Sequence(request, rank, root, self.config.context_tokens, due_ns)
        if has_sender:
            sequence.has_sender = True
            # Who sends the KV has scored the prompt, if that is wanted.
            sequence.prompt_scores = None
        else:
            sequence.arrived_ns = now_ns
        if sequence.prompt_scores is None:
            sequence.import_tokens = min(import_tokens, sequence.known_tokens)
        if self.config.prefix_caching:
            sequence.chain = self._chains.chain(root, request.prompt_tokens)
            chain = sequence.reusable_chain(self.config.block_size)
            cached_blocks = self.sequences.pool.likely_prefix_blocks(chain)
            sequence.prefix_hit.likely_cached_tokens = cached_blocks * self.config.block_size
        self.unfinished[request.request_id] = sequence
        self.planner.enqueue(sequence)
        if request.session:
            self.sequences.pool.resume(request.session)
            self.sequences.prefetches.resume(request.session)
        return sequence

    def _session_returning(self, event: SessionReturning) -> None:
        """Its blocks come to the device now, unless it is back already."""
        back = any(each.request.session == event.session for each in self.unfinished.values())
        if back or not self.config.prefix_caching:
            return
        names = chain_names(event.root, event.digests, event.tenant)
        return_ns = self.sequences.pool.now_ns + event.return_in_ns
        self.sequences.prefetches.add(Returning(event.session, event.tenant, names, return_ns))

    def _objection(self, request: Request) -> TandemError | None:
        known_tokens = len(request.prompt_tokens) + len(request.output_tokens)
        if not request.prompt_tokens:
            return InvalidRequest("prompt", "is empty")
        if known_tokens >= self.config.context_tokens:
            return PromptTooLong(known_tokens, self.config.context_tokens)
        if len(request.output_tokens) >= request.sampling.max_tokens:
            return InvalidRequest("output_tokens", "already reach max_tokens")
        vocabulary = range(self.config.vocabulary_tokens)
        # Choices of one call share their prompt: it is looked at once.
        seen = request.prompt_tokens is self._valid_prompt
        if not (
            (seen or _in_vocabulary(request.prompt_tokens, vocabulary))
            and _in_vocabulary(request.output_tokens, vocabulary)
        ):
            return InvalidRequest("prompt", "holds a token id outside the vocabulary")
        self._valid_prompt = request.prompt_tokens
        for field, token in request.sampling.named_tokens:
            if token not in vocabulary:
                return InvalidRequest(field, "names a token id outside the vocabulary")
        sequences = self.sequences
        if any(
            request.request_id in taken
            for taken in (self.unfinished, sequences.importing, sequences.pinned)
        ):
            return InvalidRequest("request_id", f"{request.request_id!r} is already running")
        return None

    def _make_way(self, request: Request, effects: list[WorkerEffect]) -> TandemError | None:
        """Where all places of those who wait are taken, the account that has most gives up its
        newest, so that nobody keeps the others out."""
        waiting = self.planner.waiting
        if len(waiting) < self.config.max_waiting:
            return None
        loser = waiting.gives_way(request)
        if loser is None:
            return Overloaded(f"{len(waiting)} requests are waiting already", 1.0)
        self._end(loser, effects)
        error = Overloaded(f"{len(waiting) + 1} requests wait, most of them yours", 1.0)
        effects.append(Refuse(loser.request.request_id, error))
        return None

    def _end(self, sequence: Sequence, effects: list[WorkerEffect]) -> None:
        request_id = sequence.request.request_id
        del self.unfinished[request_id]
        match sequence.phase:
            case Phase.RUNNING:
                self.sequences.stop_running(sequence, Phase.ENDED)
            case Phase.IMPORTING:
                self.sequences.give_up_import(sequence)
                if self.planner.withdraw_import(request_id):
                    self.sequences.end_import(sequence)
                else:
                    effects.append(CancelImport(request_id))
            case _:
                self.planner.waiting.remove(sequence)
                sequence.give_up_slot(Phase.ENDED)

    def _import_done(self, event: ImportDone) -> None:
        sequence = self.sequences.importing[event.request_id]
        assert event.tokens <= max(sequence.import_tokens, sequence.residency.scheduled)
        sequence.import_tokens = 0
        if not self.sequences.end_import(sequence):
            return
        sequence.extend(event.output_tokens)
        # The last known token is always computed: its logits draw the next one.
        tokens = min(event.tokens, sequence.known_tokens - 1)
        if tokens > sequence.residency.scheduled:
            sequence.residency.scheduled = tokens
            self.sequences.confirm_computed(sequence, tokens, self.config.prefix_caching)

    @property
    def _awaits_drafts(self) -> bool:
        """Whether what a step under way draws, or drafts, is to be known before the next is
        planned. In a pipeline each sequence waits for its own tokens anyway."""
        return (
            self.drafting is not None
            and self.config.pipeline_stages == 1
            and any(builder.drafts for builder in self._in_flight)
        )

    def _launch(self, now_ns: int) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        while len(self._in_flight) < self._most_in_flight and not self._awaits_drafts:
            builder = self.planner.plan(self._steps, self._most_in_flight - len(self._in_flight))
            self._unplanned = False
            for sequence in self.planner.take_lost():
                if sequence.phase is Phase.ENDED:
                    del self.unfinished[sequence.request.request_id]
                effects.append(report_lost_kv(sequence))
            if builder is None:
                break
            self._steps += 1
            self._in_flight.append(builder)
            effects.append(RunStep(builder.build(now_ns)))
        return effects

    def _land(self, result: StepResult, now_ns: int) -> list[WorkerEffect]:
        builder = self._in_flight.popleft()
        assert builder.step_id == result.step_id
        kept_drafts = sum(result.token_counts) - len(result.token_counts)
        self.step_tally.step_landed(builder.work, builder.launched_ns, now_ns, kept_drafts)
        if result.prompt_logprobs:
            take_prompt_scores(builder, result)
        emission = StepOutput()
        effects: list[WorkerEffect] = []
        land = self._land_tokens if draws_one_each(builder, result) else self._land_rows
        computed = land(builder, result, emission, effects)
        if self.drafting:
            self.drafting.step_landed(builder, result, now_ns)
        self.sequences.step_landed()
        return emission.effects() + effects + report_kv(computed, self.sequences.pool)

    def _land_rows(
        self,
        builder: PlanBuilder,
        result: StepResult,
        emission: StepOutput,
        effects: list[WorkerEffect],
    ) -> list[Sequence]:
        """Gives each sequence what its row drew, and confirms its KV. Those that another worker
        reads."""
        computed: list[Sequence] = []
        failed = {builder.rows[row][0] for row in result.failed_rows}
        confirm_computed, caching = self.sequences.confirm_computed, self.config.prefix_caching
        for sequence, end_tokens, drawn in landed_rows(builder, result):
            sequence.steps_in_flight -= 1
            if drawn:
                sequence.unseen -= 1
            if sequence.phase is Phase.ENDED:
                continue
            if failed and sequence in failed:
                # What this step wrote is not confirmed, so it never gets into the prefix cache;
                # what earlier steps wrote was sound then.
                self._end(sequence, effects)
                request = sequence.request
                reason = NO_TOKEN_ALLOWED if request.sampling.grammar else NO_NUMBERS
                reason = NO_ADAPTER if request.adapter is not None else reason
                effects.append(FailRequest(request.request_id, reason))
                continue
            ended = emission.take_all(sequence, result, drawn)
            # A sequence preempted since has given its blocks away, but its tokens are as good as
            # any: they were drawn from KV that was whole when the step ran.
            if sequence.phase is Phase.RUNNING:
                # Behind the end of an answer there may be drafts that were kept.
                confirm_computed(sequence, min(end_tokens, sequence.known_tokens), caching)
                if sequence.transfers_after:
                    computed.append(sequence)
            if ended or (drawn and sequence.transfers_after):
                self._tokens_taken(sequence, ended, effects)
        return computed

    def _land_tokens(
        self,
        builder: PlanBuilder,
        result: StepResult,
        emission: StepOutput,
        effects: list[WorkerEffect],
    ) -> list[Sequence]:
        """As `_land_rows` where each row drew one token: that is most steps, and with many
        sequences it takes two thirds of the time."""
        computed: list[Sequence] = []
        confirm_computed, caching = self.sequences.confirm_computed, self.config.prefix_caching
        # Python 3.11 looks a member of an enum up ten times as long as a local.
        running, ended_before = Phase.RUNNING, Phase.ENDED
        for (sequence, end_tokens, _), token in zip(builder.rows, result.tokens, strict=True):
            sequence.steps_in_flight -= 1
            sequence.unseen -= 1
            phase = sequence.phase
            if phase is ended_before:
                continue
            ended = emission.take(sequence, token)
            if phase is running:
                confirm_computed(sequence, end_tokens, caching)
                if sequence.transfers_after:
                    computed.append(sequence)
            if ended or sequence.transfers_after:
                self._tokens_taken(sequence, ended, effects)
        return computed

    def _tokens_taken(self, sequence: Sequence, ended: bool, effects: list[WorkerEffect]) -> None:
        """After tokens were drawn: the sequence ends, or waits for its next worker if none are
        under way."""
        if ended:
            self._end(sequence, effects)
        elif not sequence.unseen:
            del self.unfinished[sequence.request.request_id]
            self.sequences.pin_for_transfer(sequence)

    def repeatable_steps(self) -> int:
        """How many of the coming steps are known already: the same sequences decode, nobody ends,
        enters, takes or fills a block. A simulator may take them at one go (`fast_forward`)."""
        config = self.config
        if config.pipeline_stages > 1 or len(self._in_flight) < self._most_in_flight:
            return 0
        if self.drafting:
            return 0
        if self._unplanned or (len(self.planner.waiting) and not self.planner.settled):
            return 0
        return repeating_steps(
            self._in_flight, self.sequences.running, config.block_size, config.prefix_caching
        )

    def fast_forward(self, steps: int, tokens: Iterable[int], landed_ns: int) -> None:
        """As if `steps` steps had landed, the last of them at `landed_ns`, and as many been
        planned; at most `repeatable_steps()`.

        `tokens[i]` is what row i of the step under way draws, each time; none stops its sequence.
        The ids of the plans in flight grow by `steps`."""
        self._steps += steps
        first = self._in_flight[0]
        self.step_tally.steps_landed(first.work, steps, first.launched_ns, landed_ns)
        repeat(self._in_flight, steps, tokens)


def _in_vocabulary(tokens: Iterable[int], vocabulary: range) -> bool:
    ids = np.asarray(tokens)
    unsigned = ids.dtype.kind == "u"
    if not ids.size or (unsigned and 256**ids.itemsize <= len(vocabulary)):
        return True
    return bool((unsigned or ids.min() >= 0) and ids.max() < len(vocabulary))
