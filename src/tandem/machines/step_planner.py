"""Turns running and waiting sequences into the plan of one step, with the policy's order and the
pool's blocks: who continues, who is admitted, who gives way."""

from bisect import insort
from collections.abc import Sequence as Ordered

from tandem.machines.plan_builder import PlanBuilder
from tandem.machines.residents import Residents
from tandem.machines.sequence import Phase, Sequence
from tandem.policy.batching import TokenBudgetBatching


class StepPlanner:
    """Plans steps over `residents` and a queue of waiting sequences, which it owns."""

    def __init__(
        self, residents: Residents, batching: TokenBudgetBatching, prefix_caching: bool
    ) -> None:
        self.residents = residents
        self.batching = batching
        self.prefix_caching = prefix_caching
        self.waiting: list[Sequence] = []
        self.preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0

    def enqueue(self, sequence: Sequence) -> None:
        """Wait by rank: a preempted sequence is older than the newcomers and stands before them."""
        insort(self.waiting, sequence, key=_rank)

    def plan(self, step_id: int) -> PlanBuilder | None:
        """The next step, or None when nothing can run now.

        Decodes come first, then prompts by priority, whether they already run or still wait.
        """
        builder = PlanBuilder(step_id, self.batching.max_batched_tokens)
        self._yield_to_urgent()
        decodes, prefills = self.batching.decodes_and_prefills(self.residents.running)
        self._continue(builder, decodes)
        if prefills:
            self._admit_waiting(builder, prefills[0])
            self._continue(builder, prefills)
        self._admit_waiting(builder, None)
        return builder if builder.rows else None

    def _continue(self, builder: PlanBuilder, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if sequence.phase is not Phase.RUNNING:
                continue
            chunk_tokens = self.batching.chunk_tokens(
                sequence.pending_tokens, builder.budget_tokens
            )
            if chunk_tokens and self._make_room(builder, sequence, chunk_tokens):
                builder.add_row(sequence, chunk_tokens)

    def _make_room(self, builder: PlanBuilder, sequence: Sequence, chunk_tokens: int) -> bool:
        """Give a running sequence the blocks for its chunk, preempting others if need be."""
        pool = self.residents.pool
        needed = self.residents.blocks_for(sequence, sequence.scheduled + chunk_tokens)
        while pool.free_blocks < needed:
            builder.short_of_blocks = True
            candidates = [s for s in self.residents.running if s not in builder.planned]
            victim = self.batching.victim(candidates)
            if victim is sequence and len(candidates) == 1:
                # All others run in this step and will free blocks in the end: keep what is
                # computed and sit this step out.
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        for _ in range(needed):
            builder.add_block(sequence, pool.allocate())
        return True

    def _admit_waiting(self, builder: PlanBuilder, before: Sequence | None) -> None:
        """Admit by rank while there is room: all, or only those who outrank `before`."""
        for sequence in list(self.waiting):
            if builder.short_of_blocks or not builder.budget_tokens:
                return
            if not self.residents.free_slots:
                return
            if before is not None and not self.batching.outranks(sequence, before):
                return
            cached = self._cached_blocks(sequence)
            if cached is None:
                continue
            if not self._enters(sequence, cached):
                return
            self._admit(builder, sequence, cached)

    def _admit(self, builder: PlanBuilder, sequence: Sequence, cached: list[int]) -> None:
        self.waiting.remove(sequence)
        if sequence.cached_tokens < 0:
            # A sequence that was preempted finds its own blocks: that is no hit.
            self.prefix_query_tokens += len(sequence.tokens)
            self.prefix_hit_tokens += len(cached) * self.residents.block_size
        self.residents.start(sequence, cached)
        builder.place(sequence)
        chunk_tokens = self.batching.chunk_tokens(sequence.pending_tokens, builder.budget_tokens)
        for _ in range(self.residents.blocks_for(sequence, sequence.scheduled + chunk_tokens)):
            builder.add_block(sequence, self.residents.pool.allocate())
        builder.add_row(sequence, chunk_tokens)

    def _cached_blocks(self, sequence: Sequence) -> list[int] | None:
        """The cached start of a waiting sequence, or None when it had better not enter yet: its
        steps have not all landed, or somebody is just computing the block that it needs next."""
        if sequence.flights:
            return None
        if not self.prefix_caching:
            return []
        chain = sequence.reusable_chain(self.residents.block_size)
        cached = self.residents.pool.cached_prefix(chain)
        if len(cached) < len(chain):
            filler = self.residents.filler_of(chain[len(cached)])
            if filler is not None and not self.batching.outranks(sequence, filler):
                return None
        return cached

    def _enters(self, sequence: Sequence, cached: Ordered[int]) -> bool:
        """Whether a slot is free and the blocks of all known tokens fit, with some to spare for
        those who already run: admitting into their next blocks would only preempt somebody."""
        residents = self.residents
        if not residents.free_slots:
            return False
        spare = residents.pool.fits(cached, self._new_blocks(sequence, cached))
        return spare >= self._promised_blocks(residents.running)

    def _new_blocks(self, sequence: Sequence, cached: Ordered[int]) -> int:
        return self.residents.blocks_for(sequence, len(sequence.tokens)) - len(cached)

    def _promised_blocks(self, running: Ordered[Sequence]) -> int:
        """Blocks that running sequences will ask for soon: the rest of their prompts, and some to
        go on talking."""
        prompts = sum(
            max(0, self.residents.blocks_for(sequence, len(sequence.tokens)))
            for sequence in running
            if sequence.pending_tokens > 1
        )
        return prompts + self.batching.reserve_blocks(len(running))

    def _yield_to_urgent(self) -> None:
        """When the first waiting sequence cannot enter but would if all of lower priority left,
        preempt as many of those as it takes."""
        if not self.waiting or not self.residents.running:
            return
        urgent = self.waiting[0]
        lesser = [s for s in self.residents.running if self.batching.outranks(urgent, s)]
        if not lesser:
            return
        cached = self._cached_blocks(urgent)
        if cached is None or not self._would_enter(urgent, cached, lesser):
            return
        while not self._enters(urgent, cached):
            victim = self.batching.victim(lesser)
            lesser.remove(victim)
            self._preempt(victim)

    def _would_enter(self, urgent: Sequence, cached: Ordered[int], leaving: list[Sequence]) -> bool:
        residents = self.residents
        staying = [sequence for sequence in residents.running if sequence not in leaving]
        spare = residents.pool.fits_without(
            [sequence.blocks for sequence in leaving], cached, self._new_blocks(urgent, cached)
        )
        return spare >= self._promised_blocks(staying)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue; what it sealed stays cached, the rest will be recomputed."""
        self.preemptions += 1
        self.residents.leave(sequence, Phase.WAITING)
        self.enqueue(sequence)


def _rank(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.rank
