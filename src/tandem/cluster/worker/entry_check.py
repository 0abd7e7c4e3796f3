"""Whether a waiting sequence may enter now: what it finds in the cache, and whether the rest of it
fits beside those who are there already."""

from bisect import bisect_left
from collections.abc import Sequence as Ordered

from tandem.cluster.worker.running import RunningSequences
from tandem.cluster.worker.sequence import Phase, Sequence
from tandem.policy.batching import TokenBudgetBatching


class Entry:
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
        """Whether somebody whom `sequence` does not outrank is about to fill this block."""
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
        their prompts, and some to go on talking."""
        importing = self.sequences.importing.values()
        prompts = sum(
            max(0, self.sequences.blocks_for(sequence, sequence.known_tokens))
            for sequence in (*running, *importing)
            if sequence.pending_tokens > 1 or sequence.phase is Phase.IMPORTING
        )
        return prompts + self.batching.reserve_blocks(len(running) + len(importing))
