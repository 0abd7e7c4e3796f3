"""Whether a waiting sequence may enter now: what it finds in the cache, and whether the rest of it
fits beside those who are there already."""

from collections.abc import Sequence as Ordered

from tandem.machines.residents import Residents
from tandem.machines.sequence import Phase, Sequence
from tandem.policy.batching import TokenBudgetBatching


class Entry:
    """Looks at `residents` and changes nothing."""

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
        chain = sequence.reusable_chain(self.residents.block_size)
        cached = self.residents.pool.cached_prefix(chain)
        if len(cached) < len(chain):
            filler = self.residents.filler_of(chain[len(cached)])
            if filler is not None and not self.batching.outranks(sequence, filler):
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

    def _new_blocks(self, sequence: Sequence, cached: Ordered[int]) -> int:
        return self.residents.blocks_for(sequence, len(sequence.tokens)) - len(cached)

    def _promised_blocks(self, running: Ordered[Sequence]) -> int:
        """Blocks that these running and all importing sequences will ask for soon: the rest of
        their prompts, and some to go on talking."""
        importing = self.residents.importing.values()
        prompts = sum(
            max(0, self.residents.blocks_for(sequence, len(sequence.tokens)))
            for sequence in (*running, *importing)
            if sequence.pending_tokens > 1 or sequence.phase is Phase.IMPORTING
        )
        return prompts + self.batching.reserve_blocks(len(running) + len(importing))
