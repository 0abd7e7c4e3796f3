"""Running, importing and pinned sequences of a worker: slots, blocks, and sharing through the
prefix cache."""

from bisect import insort
from collections.abc import Iterable

from tandem.cluster.audit import invariant
from tandem.cluster.worker.block_pool import BlockPool
from tandem.cluster.worker.prefetches import Prefetches
from tandem.cluster.worker.sequence import Phase, Sequence
from tandem.facts.kv import BlockName
from tandem.messages.worker import BlocksCommitted, BlocksPrefetched


class CommittedBlocks:
    """To be added to only where somebody `wanted` that."""

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self._rows: list[tuple[int, int, BlockName]] = []

    def add(self, block: int, version: int, name: BlockName) -> None:
        """The block is full and keeps what it holds under this version."""
        self._rows.append((block, version, name))

    def take(self) -> BlocksCommitted | None:
        """What was added since the last call; None when nothing."""
        if not self._rows:
            return None
        blocks, versions, names = zip(*self._rows, strict=True)
        self._rows = []
        return BlocksCommitted(blocks, versions, names)


class RunningSequences:
    """Owns the slots, the block pool and the sequences that hold any: `running` by rank,
    `importing` while their KV is on its way (a slot, and blocks that somebody writes to, so never
    preempted), `pinned` after their last step here (blocks that somebody reads, no slot). And the
    `prefetches`, which hold blocks for sequences to come."""

    def __init__(
        self,
        slot_count: int,
        pool: BlockPool,
        block_size: int,
        *,
        keeps_tails: bool = False,
        reports_committed: bool = False,
    ) -> None:
        self.pool = pool
        self.prefetches = Prefetches(pool)
        self.committed = CommittedBlocks(wanted=reports_committed)
        self.block_size = block_size
        self._keeps_tails = keeps_tails
        self.running: list[Sequence] = []
        self.importing: dict[str, Sequence] = {}
        self.pinned: dict[str, Sequence] = {}
        self.slot_count = slot_count
        self.free_slots = list(range(slot_count - 1, -1, -1))
        # Hashes of prompt blocks that a running sequence is about to fill: another sequence that
        # needs one waits for it rather than computing it a second time.
        self._filling: dict[bytes, Sequence] = {}
        # Blocks left by a sequence whose steps are still under way. Later plans run after those
        # steps and may reuse them at once; an import may not.
        self._touched: list[tuple[Sequence, list[int]]] = []

    def filler_of(self, digest: bytes) -> Sequence | None:
        """The running or importing sequence that is about to fill this block, if any."""
        return self._filling.get(digest)

    def blocks_for(self, sequence: Sequence, tokens: int) -> int:
        """How many more blocks the first `tokens` of the sequence need than it has."""
        return -(-tokens // self.block_size) - len(sequence.residency.blocks)

    def start_running(
        self, sequence: Sequence, cached_blocks: list[int], *, takes_tail: bool
    ) -> None:
        """A waiting sequence takes a slot and shares these cached blocks; and takes over the partly
        filled one that follows, if one does and it may."""
        self.pool.share(cached_blocks, sequence.request.session)
        full_blocks, blocks = len(cached_blocks), list(cached_blocks)
        cached_tokens = full_blocks * self.block_size
        wanted = sequence.reusable_tail(full_blocks, self.block_size) if takes_tail else ()
        if wanted and (tail := self.pool.take_tail(sequence.parent_hash(full_blocks), wanted)):
            blocks.append(tail[0])
            cached_tokens += tail[1]
        sequence.take_slot(self.free_slots.pop(), blocks, full_blocks, cached_tokens)
        insort(self.running, sequence, key=_rank)
        for digest in sequence.chain[sequence.residency.committed :]:
            self._filling.setdefault(digest, sequence)

    def stop_running(self, sequence: Sequence, phase: Phase) -> None:
        """A running sequence gives everything back; what it committed stays in the cache."""
        self.running.remove(sequence)
        self.free_slots.append(sequence.residency.slot)
        self._release(sequence)
        self._fills_no_more(sequence)
        if sequence.steps_in_flight:
            self._touched.append((sequence, sequence.residency.blocks))
        sequence.give_up_slot(phase)

    def step_landed(self) -> None:
        """Blocks that only the landed step still touched are quiet now."""
        self._touched = [(left, blocks) for left, blocks in self._touched if left.steps_in_flight]

    def touched(self) -> set[int]:
        """The blocks that steps under way touch on behalf of a former owner."""
        return {block for _, left_blocks in self._touched for block in left_blocks}

    def quiet(self, blocks: Iterable[int]) -> bool:
        """Whether none of these blocks is touched by a step on behalf of a former owner."""
        return self.touched().isdisjoint(blocks)

    def end_prefetch(self, event: BlocksPrefetched) -> None:
        """Nobody writes for a prefetch any more: what came is cached."""
        for block, name in self.prefetches.end(event):
            if self.committed.wanted:
                self.committed.add(block, self.pool.versions[block], name)

    def start_import(self, sequence: Sequence, end_token: int) -> tuple[int, ...]:
        """A sequence just started gets the blocks for all tokens before `end_token`, and waits
        until their KV has come. Gives the new blocks."""
        new_blocks = [self.pool.allocate() for _ in range(self.blocks_for(sequence, end_token))]
        sequence.residency.blocks += new_blocks
        self.running.remove(sequence)
        self.importing[sequence.request.request_id] = sequence
        sequence.phase = Phase.IMPORTING
        return tuple(new_blocks)

    def give_up_import(self, sequence: Sequence) -> None:
        """The request ended while its blocks are still being written: they stay until that ends."""
        self._fills_no_more(sequence)
        sequence.phase = Phase.ENDED

    def end_import(self, sequence: Sequence) -> bool:
        """Nobody writes to the blocks any more. Whether the sequence goes on here."""
        del self.importing[sequence.request.request_id]
        if sequence.phase is Phase.ENDED:
            self.free_slots.append(sequence.residency.slot)
            self._release(sequence)
            sequence.give_up_slot(Phase.ENDED)
            return False
        sequence.phase = Phase.RUNNING
        insort(self.running, sequence, key=_rank)
        return True

    def pin_for_transfer(self, sequence: Sequence) -> None:
        """A running sequence has done its part here and keeps its blocks for a reader."""
        self.running.remove(sequence)
        self.free_slots.append(sequence.residency.slot)
        self._fills_no_more(sequence)
        self.pinned[sequence.request.request_id] = sequence
        sequence.phase = Phase.PINNED

    def release_transfer_pin(self, request_id: str) -> bool:
        """Free a held sequence's blocks. Whether there was one."""
        sequence = self.pinned.pop(request_id, None)
        if sequence is None:
            return False
        self._release(sequence)
        sequence.give_up_slot(Phase.ENDED)
        return True

    def _release(self, sequence: Sequence) -> None:
        """Its blocks are free, and cached where they were committed; the last one as far as it is
        filled and confirmed."""
        residency = sequence.residency
        confirmed, committed = residency.confirmed, residency.committed
        first = committed * self.block_size
        if self._keeps_tails and 0 < confirmed - first < self.block_size:
            tokens = sequence.tokens[first:confirmed]
            self.pool.keep_tail(
                residency.blocks[committed], sequence.parent_hash(committed), tokens
            )
        self.pool.release(residency.blocks)

    def _fills_no_more(self, sequence: Sequence) -> None:
        for digest in sequence.chain[sequence.residency.committed :]:
            if self._filling.get(digest) is sequence:
                del self._filling[digest]

    def confirm_computed(self, sequence: Sequence, computed_tokens: int, cache: bool) -> None:
        """The KV of the first `computed_tokens` is there; full blocks go into the cache."""
        residency = sequence.residency
        residency.confirmed = computed_tokens
        full_blocks = computed_tokens // self.block_size
        if not cache or full_blocks <= residency.committed:
            return
        sequence.grow_chain(self.block_size)
        chain, pool, filling = sequence.chain, self.pool, self._filling
        wanted, request = self.committed.wanted, sequence.request
        tenant, session = request.tenant, request.session
        first_block = residency.committed
        parent = sequence.parent_hash(first_block)
        for index in range(first_block, full_blocks):
            digest, block = chain[index], residency.blocks[index]
            if pool.commit(block, digest, parent, session) and wanted:
                # As `Sequence.block_name`, whose parent is known here already.
                name = BlockName(digest, parent, chain[0], tenant)
                self.committed.add(block, pool.versions[block], name)
            if filling.get(digest) is sequence:
                del filling[digest]
            parent = digest
        residency.committed = full_blocks

    def audit(self) -> None:
        """Assert that blocks and slots have exactly the sequences as owners."""
        in_slots = [*self.running, *self.importing.values()]
        resident = [*in_slots, *self.pinned.values()]
        tables = [sequence.residency.blocks for sequence in resident]
        self.pool.audit(tables + self.prefetches.blocks_under_way())
        self.prefetches.audit()
        counted = all(each.known_tokens == len(each.tokens) for each in resident)
        invariant(counted, "sequences know how many tokens they know")
        slots = [sequence.residency.slot for sequence in in_slots] + self.free_slots
        invariant(sorted(slots) == list(range(len(slots))), "each slot is free or has one sequence")
        filling = set(self._filling.values())
        invariant(filling <= set(in_slots), "blocks are filled by sequences that run")


def _rank(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.rank
