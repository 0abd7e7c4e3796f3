"""Plans one step: continues running sequences, admits waiting ones, preempts when blocks run
out."""

from bisect import bisect_left
from collections.abc import Sequence as Ordered

from tandem.cluster.worker.plan_builder import PlanBuilder
from tandem.cluster.worker.running import RunningSequences
from tandem.cluster.worker.sequence import Phase, Sequence
from tandem.cluster.worker.speculation import Drafting
from tandem.cluster.worker.waiting import WaitingSequences
from tandem.facts.slo import IN_BACKGROUND
from tandem.facts.token_tree import NO_GUESSES, TokenTree
from tandem.messages.worker import ImportBlocks
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.speculation import MOST_STEP_DRAFTS, NO_DRAFTS, DraftChances


class EntryCheck:
    """Looks at `sequences` and changes nothing there."""

    def __init__(
        self, sequences: RunningSequences, batching: TokenBudgetBatching, prefix_caching: bool
    ) -> None:
        self.sequences = sequences
        self.batching = batching
        self.prefix_caching = prefix_caching

    def cached_blocks(self, sequence: Sequence) -> list[int] | None:
        """The cached start of a waiting sequence, or None when it had better not enter yet: its
        steps have not all landed, or somebody is just computing the block that it needs next."""
        if sequence.steps_in_flight:
            return None
        if not self.prefix_caching:
            return []
        awaited = sequence.prefix_hit.awaited
        if awaited is not None and self._fills(awaited, sequence):
            return None
        chain = sequence.reusable_chain(self.sequences.block_size)
        if chain and self._fills(chain[-1], sequence):
            sequence.prefix_hit.awaited = chain[-1]
            return None
        cached = self.sequences.pool.cached_prefix(chain)
        if len(cached) < len(chain) and self._fills(chain[len(cached)], sequence):
            sequence.prefix_hit.awaited = self._last_filled(chain, len(cached))
            return None
        return cached

    def enters(self, sequence: Sequence, cached: Ordered[int]) -> bool:
        """Whether a slot is free and the blocks of all known tokens fit, with some to spare for
        those who already run: admitting into their next blocks would only preempt somebody."""
        sequences = self.sequences
        if not sequences.free_slots:
            return False
        spare = sequences.pool.fits(cached, self._new_blocks(sequence, cached))
        return spare >= self._promised_blocks(sequences.running)

    def spare_blocks(self) -> int:
        """Free blocks that nobody who is here will ask for soon."""
        return self.sequences.pool.free_blocks - self._promised_blocks(self.sequences.running)

    def would_enter(self, urgent: Sequence, cached: Ordered[int], leaving: list[Sequence]) -> bool:
        """As `enters`, if these had left."""
        sequences = self.sequences
        staying = [sequence for sequence in sequences.running if sequence not in leaving]
        spare = sequences.pool.fits_without(
            [sequence.residency.blocks for sequence in leaving],
            cached,
            self._new_blocks(urgent, cached),
        )
        return spare >= self._promised_blocks(staying)

    def _fills(self, digest: bytes, sequence: Sequence) -> bool:
        """Whether somebody whom `sequence` does not outrank is about to fill this block, or it is
        being prefetched."""
        if digest in self.sequences.prefetches.filling:
            return True
        filler = self.sequences.filler_of(digest)
        return filler is not None and not self.batching.outranks(sequence, filler)

    def _last_filled(self, chain: Ordered[bytes], first: int) -> bytes:
        """The last block of `chain` that somebody fills who fills the `first`: who waits for it
        need not look at all blocks before it in each step."""
        filling = self.sequences.filler_of
        end = bisect_left(range(len(chain)), True, first, key=lambda at: filling(chain[at]) is None)
        return chain[max(first, end - 1)]

    def _new_blocks(self, sequence: Sequence, cached: Ordered[int]) -> int:
        return self.sequences.blocks_for(sequence, sequence.known_tokens) - len(cached)

    def _promised_blocks(self, running: Ordered[Sequence]) -> int:
        """Blocks that these running and all importing sequences will ask for soon: the rest of
        their prompts, and some to go on decoding."""
        importing = self.sequences.importing.values()
        prompts = sum(
            max(0, self.sequences.blocks_for(sequence, sequence.known_tokens))
            for sequence in (*running, *importing)
            if sequence.pending_tokens > 1 or sequence.phase is Phase.IMPORTING
        )
        return prompts + self.batching.reserve_blocks(len(running) + len(importing))


class AdapterRoom:
    """Room for the adapters of waiting sequences, in one pass over them: those that run and import
    have `max_adapters` different ones at most (0: any number). The first that finds none may be
    overtaken by as many as there are slots; then whoever has an adapter waits behind it, so that
    its turn comes."""

    def __init__(self, sequences: RunningSequences, max_adapters: int) -> None:
        self._max_adapters = max_adapters
        self._most_overtaken = sequences.slot_count
        self._without_room: Sequence | None = None
        # Mostly nobody has one, or any number may run.
        self._there: set[str] = set()
        if max_adapters:
            for each in (*sequences.running, *sequences.importing.values()):
                if each.request.adapter is not None:
                    self._there.add(each.request.adapter.digest)

    def admits(self, sequence: Sequence) -> bool:
        adapter = sequence.request.adapter
        if adapter is None or not self._max_adapters:
            return True
        first = self._without_room
        if adapter.digest in self._there or len(self._there) < self._max_adapters:
            return first is None or first.overtaken < self._most_overtaken
        if first is None:
            self._without_room = sequence
        return False

    def admitted(self, sequence: Sequence) -> None:
        """It enters now."""
        if sequence.request.adapter is not None:
            self._there.add(sequence.request.adapter.digest)
            if self._without_room is not None:
                self._without_room.overtaken += 1


class StepPlanner:
    """Plans steps over `sequences` and a queue of waiting sequences, which it owns; with drafts as
    `drafting` says, if at all."""

    def __init__(
        self,
        sequences: RunningSequences,
        batching: TokenBudgetBatching,
        prefix_caching: bool,
        pipeline_stages: int,
        drafting: Drafting | None = None,
        max_adapters: int = 0,
    ) -> None:
        self.sequences = sequences
        self.batching = batching
        self._entry_check = EntryCheck(sequences, batching, prefix_caching)
        self._max_adapters = max_adapters
        self.pipeline_stages = pipeline_stages
        self._drafting = drafting
        self._draft_rule = NO_DRAFTS
        self.waiting = WaitingSequences()
        # Whether the last plan moved no block and let nobody in or out: the next finds no more.
        self.settled = False
        # Of prompts that nobody waits for, what the step that is planned may still take.
        self._background_tokens = 0
        # And of prompts in all, before another begins.
        self._enough_tokens = 0
        self._imports: dict[str, ImportBlocks] = {}
        self._lost: list[Sequence] = []
        self.preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0

    def enqueue(self, sequence: Sequence) -> None:
        """Wait by rank: a preempted sequence is older than the newcomers and stands before them."""
        self.waiting.add(sequence)

    def plan(self, step_id: int, free_steps: int) -> PlanBuilder | None:
        """The next step, or None when nothing can run now; the first of `free_steps` more that
        may be under way.

        Decodes come first, then prompts by priority, whether they already run or still wait.
        """
        builder = PlanBuilder(step_id, self.batching.max_batched_tokens)
        self.settled = True
        self._yield_to_urgent()
        firsts = [*self.sequences.running[:1], *([self.waiting.first] if len(self.waiting) else ())]
        self._background_tokens = self.batching.background_tokens(firsts)
        decodes, prefills = self.batching.decodes_and_prefills(self.sequences.running)
        prompt_tokens = self.waiting.prefill_tokens + sum(each.pending_tokens for each in prefills)
        self._enough_tokens = self.batching.enough_tokens(prompt_tokens, len(decodes))
        if self.pipeline_stages > 1:
            decodes = self._one_stage_full(decodes, free_steps)
        if self._drafting:
            self._draft_rule = self._drafting.rule([sequence.drafts for sequence in decodes])
        self._decode(builder, decodes)
        if prefills:
            self._admit_waiting(builder, prefills[0])
            self._continue(builder, prefills)
        self._admit_waiting(builder, None)
        return builder if builder.rows else None

    def spare_blocks(self) -> int:
        """Free blocks that nobody who is here will ask for soon."""
        return self._entry_check.spare_blocks()

    def take_imports(self) -> list[ImportBlocks]:
        """The imports begun, not taken before, and into blocks that no step still touches."""
        if not self._imports:
            return []
        ready = [wanted for wanted in self._imports.values() if self.sequences.quiet(wanted.blocks)]
        for wanted in ready:
            del self._imports[wanted.request_id]
        return ready

    def take_lost(self) -> list[Sequence]:
        """Those that gave way since the last call though another worker was to read their KV:
        ended where they handed over, waiting (or back again) where they were only copied."""
        lost, self._lost = self._lost, []
        return lost

    def withdraw_import(self, request_id: str) -> bool:
        """Forget an import that was not taken yet. Whether there was one."""
        return self._imports.pop(request_id, None) is not None

    def _one_stage_full(self, decodes: list[Sequence], free_stages: int) -> list[Sequence]:
        """A pipeline is filled by several steps of different sequences: the next token of a
        sequence starts only when its last has come out of the last stage. Even shares leave no
        stage idle and none longer busy than the others."""
        ready = [sequence for sequence in decodes if not sequence.unseen]
        fair_share = -(-len(decodes) // self.pipeline_stages)
        return ready[: min(fair_share, -(-len(ready) // free_stages))]

    def _decode(self, builder: PlanBuilder, decodes: list[Sequence]) -> None:
        """As `_continue`, for sequences with one token pending each."""
        guesses = self._drafting is not None and any(
            sequence.proposal is not NO_GUESSES for sequence in decodes
        )
        if guesses or self._draft_rule.longest or len(decodes) > builder.budget_tokens:
            self._continue(builder, decodes)
            return
        block_size, pool = self.sequences.block_size, self.sequences.pool
        ready: list[Sequence] = []
        for sequence in decodes:
            residency = sequence.residency
            has_room = residency.scheduled < len(residency.blocks) * block_size
            if residency.placed and (has_room or pool.free_blocks):
                if not has_room:
                    self.settled = False
                    builder.add_block(sequence, pool.allocate())
                ready.append(sequence)
                continue
            # Whoever has to make room must not take it from those that are ready.
            builder.add_decodes(ready)
            ready = []
            self._continue(builder, [sequence])
        builder.add_decodes(ready)

    def _continue(self, builder: PlanBuilder, sequences: list[Sequence]) -> None:
        for place, sequence in enumerate(sequences):
            if sequence.phase is not Phase.RUNNING:
                continue
            residency = sequence.residency
            if not (residency.placed or builder.may_place):
                continue
            chunk_tokens = self._chunk_tokens(builder, sequence)
            if not chunk_tokens:
                continue
            needed = self.sequences.blocks_for(sequence, residency.scheduled + chunk_tokens)
            if needed > 0 and not self._make_room(builder, sequence, needed):
                continue
            if not residency.placed:
                builder.place(sequence)
            drafts = NO_GUESSES
            if sequence.proposal and chunk_tokens == sequence.pending_tokens:
                drafts = self._drafts(builder, sequence, len(sequences) - place - 1)
            self._add_row(builder, sequence, chunk_tokens, drafts)

    def _chunk_tokens(self, builder: PlanBuilder, sequence: Sequence) -> int:
        budget_tokens = self._budget_tokens(builder, sequence)
        return self.batching.chunk_tokens(sequence.pending_tokens, budget_tokens)

    def _budget_tokens(self, builder: PlanBuilder, sequence: Sequence) -> int:
        """What is left of the step for this one."""
        if sequence.pending_tokens > 1 and builder.prompt_tokens >= self._enough_tokens:
            return 0
        if sequence.rank[0] == IN_BACKGROUND and sequence.pending_tokens > 1:
            return min(builder.budget_tokens, self._background_tokens)
        return builder.budget_tokens

    def _add_row(
        self,
        builder: PlanBuilder,
        sequence: Sequence,
        chunk_tokens: int,
        drafts: TokenTree = NO_GUESSES,
    ) -> None:
        """A row that proposes drafts for the next step, as far as they pay."""
        if chunk_tokens > 1 and sequence.rank[0] == IN_BACKGROUND:
            self._background_tokens -= chunk_tokens
        proposed_tokens = 0
        if self._drafting and self._draft_rule.longest:
            chances = self._drafting.chances(sequence.drafts)
            # One token is drawn at least before any of these.
            most = sequence.draftable_tokens - 1
            proposed_tokens = max(0, min(most, self._draft_rule.tokens_for(chances)))
        builder.add_row(sequence, chunk_tokens, drafts, proposed_tokens)

    def _drafts(self, builder: PlanBuilder, sequence: Sequence, others: int) -> TokenTree:
        """The drafts to check behind the last token of a sequence, which has its blocks: for them
        nobody else is left out or gives way."""
        assert self._drafting is not None
        residency, pool = sequence.residency, self.sequences.pool
        kept = self._drafting.chances(sequence.drafts).kept
        wanted = self._draft_rule.tokens_for(DraftChances(kept))
        spare_blocks = max(0, pool.free_blocks - others)
        block_size, first = self.sequences.block_size, residency.scheduled + 1
        count = min(
            wanted,
            len(sequence.proposal),
            sequence.draftable_tokens,
            builder.budget_tokens - 1 - others,
            MOST_STEP_DRAFTS - builder.drafted_tokens,
            (len(residency.blocks) + spare_blocks) * block_size - first,
        )
        if count <= 0:
            return NO_GUESSES
        for _ in range(self.sequences.blocks_for(sequence, first + count)):
            self.settled = False
            builder.add_block(sequence, pool.allocate())
        return sequence.proposal.first(count)

    def _make_room(self, builder: PlanBuilder, sequence: Sequence, needed: int) -> bool:
        """Give a running sequence so many more blocks, preempting others if need be."""
        pool = self.sequences.pool
        while pool.free_blocks < needed:
            builder.short_of_blocks = True
            planned = builder.planned_sequences()
            candidates = [s for s in self.sequences.running if s not in planned]
            victim = self.batching.victim(candidates)
            if victim is sequence and len(candidates) == 1:
                # All others run in this step and will free blocks in the end: keep what is
                # computed and sit this step out.
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        for _ in range(needed):
            self.settled = False
            builder.add_block(sequence, pool.allocate())
        return True

    def _admit_waiting(self, builder: PlanBuilder, before: Sequence | None) -> None:
        """Admit by rank while there is room: all, or only those who outrank `before`."""
        if not len(self.waiting):
            return
        adapters = AdapterRoom(self.sequences, self._max_adapters)
        for sequence in self.waiting:
            if builder.short_of_blocks or not self.sequences.free_slots:
                return
            if not builder.may_place:
                return
            if before is not None and not self.batching.outranks(sequence, before):
                return
            if not adapters.admits(sequence):
                continue
            cached = self._entry_check.cached_blocks(sequence)
            if cached is None:
                continue
            imports = self._wants_import(sequence, cached)
            if not imports and not self._budget_tokens(builder, sequence):
                return
            if not self._entry_check.enters(sequence, cached):
                return
            self._admit(builder, sequence, cached, imports=imports)
            adapters.admitted(sequence)

    def _wants_import(self, sequence: Sequence, cached: list[int]) -> bool:
        """Whether KV is to come from elsewhere. What slower tiers have and the device as well is
        not: then the sequence takes its blocks no sooner than others."""
        tokens = sequence.import_tokens
        missing = tokens > len(cached) * self.sequences.block_size
        return tokens > 0 and (missing or sequence.has_sender)

    def _admit(
        self, builder: PlanBuilder, sequence: Sequence, cached: list[int], *, imports: bool
    ) -> None:
        self.settled = False
        self.waiting.admit(sequence)
        # A sequence that was preempted finds its own blocks: that is no hit.
        first_look = sequence.prefix_hit.cached_tokens < 0
        # What is imported comes in whole blocks.
        self.sequences.start_running(sequence, cached, takes_tail=not imports)
        if first_look:
            self.prefix_query_tokens += sequence.known_tokens
            self.prefix_hit_tokens += sequence.residency.scheduled
        if imports:
            self._start_import(sequence)
            return
        sequence.import_tokens = 0
        builder.place(sequence)
        chunk_tokens = self._chunk_tokens(builder, sequence)
        for _ in range(
            self.sequences.blocks_for(sequence, sequence.residency.scheduled + chunk_tokens)
        ):
            builder.add_block(sequence, self.sequences.pool.allocate())
        self._add_row(builder, sequence, chunk_tokens)

    def _start_import(self, sequence: Sequence) -> None:
        blocks = self.sequences.start_import(sequence, sequence.import_tokens)
        first_token = sequence.residency.scheduled
        end_token = max(first_token, sequence.import_tokens)
        request_id = sequence.request.request_id
        self._imports[request_id] = ImportBlocks(request_id, first_token, end_token, blocks)

    def _yield_to_urgent(self) -> None:
        """When the first waiting sequence cannot enter but would if all of lower priority left,
        preempt as many of those as it takes."""
        if not len(self.waiting) or not self.sequences.running:
            return
        urgent = self.waiting.first
        lesser = [s for s in self.sequences.running if self.batching.outranks(urgent, s)]
        if not lesser:
            return
        cached = self._entry_check.cached_blocks(urgent)
        if cached is None or not self._entry_check.would_enter(urgent, cached, lesser):
            return
        if not AdapterRoom(self.sequences, self._max_adapters).admits(urgent):
            return
        while not self._entry_check.enters(urgent, cached):
            victim = self.batching.victim(lesser)
            lesser.remove(victim)
            self._preempt(victim)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue; what it committed stays cached, the rest will be recomputed. But
        somebody may just be reading the blocks of one that hands over, which ends here, or is
        copied: which must be reported to the reader."""
        self.settled = False
        self.preemptions += 1
        if sequence.transfers_after or sequence.residency.copied:
            self._lost.append(sequence)
        if sequence.transfers_after:
            self.sequences.stop_running(sequence, Phase.ENDED)
        else:
            self.sequences.stop_running(sequence, Phase.WAITING)
            self.enqueue(sequence)
