"""Whether a waiting sequence may enter now: what it finds in the cache, and whether the rest of it
fits beside those who are there already."""

from bisect import bisect_left
from collections.abc import Sequence as Ordered

from tandem.cluster.worker.running import Residents
from tandem.cluster.worker.sequence import Phase, Sequence
from tandem.policy.batching import TokenBudgetBatching


class Entry:
    """Looks at `residents` and changes nothing there."""

    def __init__(
        self, residents: Residents, batching: TokenBudgetBatching, prefix_caching: bool
    ) -> None:
        self.residents = residents
        self.batching = batching
        self.prefix_caching = prefix_caching

    def cached_blocks(self, sequence: Sequence) -> list[int] | None:
        """The cached start of a waiting sequence, or None when it had better not enter yet: its
        steps have not all landed, or somebody is just computing the block that it needs next."""
        if sequence.flights:
            return None
        if not self.prefix_caching:
            return []
        awaited = sequence.found.awaited
        if awaited is not None and self._fills(awaited, sequence):
            return None
        chain = sequence.reusable_chain(self.residents.block_size)
        if chain and self._fills(chain[-1], sequence):
            sequence.found.awaited = chain[-1]
            return None
        cached = self.residents.pool.cached_prefix(chain)
        if len(cached) < len(chain) and self._fills(chain[len(cached)], sequence):
            sequence.found.awaited = self._last_filled(chain, len(cached))
            return None
        return cached

    def enters(self, sequence: Sequence, cached: Ordered[int]) -> bool:
        """Whether a slot is free and the blocks of all known tokens fit, with some to spare for
        those who already run: admitting into their next blocks would only preempt somebody."""
        residents = self.residents
        if not residents.free_slots:
            return False
        spare = residents.pool.fits(cached, self._new_blocks(sequence, cached))
        return spare >= self._promised_blocks(residents.running)

    def would_enter(self, urgent: Sequence, cached: Ordered[int], leaving: list[Sequence]) -> bool:
        """As `enters`, if these had left."""
        residents = self.residents
        staying = [sequence for sequence in residents.running if sequence not in leaving]
        spare = residents.pool.fits_without(
            [sequence.stay.blocks for sequence in leaving], cached, self._new_blocks(urgent, cached)
        )
        return spare >= self._promised_blocks(staying)

    def _fills(self, digest: bytes, sequence: Sequence) -> bool:
        """Whether somebody whom `sequence` does not outrank is about to fill this block."""
        filler = self.residents.filler_of(digest)
        return filler is not None and not self.batching.outranks(sequence, filler)

    def _last_filled(self, chain: Ordered[bytes], first: int) -> bytes:
        """The last block of `chain` that somebody fills who fills the `first`: who waits for it
        need not look at all blocks before it in each step."""
        filling = self.residents.filler_of
        end = bisect_left(range(len(chain)), True, first, key=lambda at: filling(chain[at]) is None)
        return chain[max(first, end - 1)]

    def _new_blocks(self, sequence: Sequence, cached: Ordered[int]) -> int:
        return self.residents.blocks_for(sequence, sequence.known_tokens) - len(cached)

    def _promised_blocks(self, running: Ordered[Sequence]) -> int:
        """Blocks that these running and all importing sequences will ask for soon: the rest of
        their prompts, and some to go on talking."""
        importing = self.residents.importing.values()
        prompts = sum(
            max(0, self.residents.blocks_for(sequence, sequence.known_tokens))
            for sequence in (*running, *importing)
            if sequence.pending_tokens > 1 or sequence.phase is Phase.IMPORTING
        )
        return prompts + self.batching.reserve_blocks(len(running) + len(importing))
