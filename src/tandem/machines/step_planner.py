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
        """The next step, or None when nothing can run now."""
        builder = PlanBuilder(step_id, self.batching.max_batched_tokens)
        self._yield_to_urgent()
        self._continue_running(builder)
        if not builder.short_of_blocks:
            self._admit_waiting(builder)
        return builder if builder.rows else None

    def _continue_running(self, builder: PlanBuilder) -> None:
        for sequence in self.batching.running_order(self.residents.running):
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

    def _admit_waiting(self, builder: PlanBuilder) -> None:
        for sequence in list(self.waiting):
            if not builder.budget_tokens:
                return
            cached = self._cached_blocks(sequence)
            if cached is None:
                continue
            if not self._enters(sequence, cached):
                return
            self._admit(builder, sequence, cached)

    def _admit(self, builder: PlanBuilder, sequence: Sequence, cached: list[int]) -> None:
        self.waiting.remove(sequence)
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
        if len(cached) < len(chain) and self.residents.being_filled(chain[len(cached)]):
            return None
        return cached

    def _enters(self, sequence: Sequence, cached: Ordered[int]) -> bool:
        """Whether a slot is free and the blocks of all known tokens fit, with some to spare for
        those who already run: admitting into their next blocks would only preempt somebody."""
        residents = self.residents
        if not residents.free_slots:
            return False
        needed = residents.blocks_for(sequence, len(sequence.tokens)) - len(cached)
        spare = residents.pool.fits(cached, needed)
        return spare >= self.batching.reserve_blocks(len(residents.running))

    def _yield_to_urgent(self) -> None:
        """Preempt running sequences of lower priority when the first waiting one can not enter."""
        if not self.waiting or not self.residents.running:
            return
        urgent = self.waiting[0]
        if not self.batching.outranks(urgent, self.residents.running[-1]):
            return
        cached = self._cached_blocks(urgent)
        while cached is not None and not self._enters(urgent, cached):
            victim = self.batching.victim(self.residents.running)
            if not self.batching.outranks(urgent, victim):
                return
            self._preempt(victim)
            if not self.residents.running:
                return

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue; what it sealed stays cached, the rest will be recomputed."""
        self.preemptions += 1
        self.residents.leave(sequence, Phase.WAITING)
        self.enqueue(sequence)


def _rank(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.rank
