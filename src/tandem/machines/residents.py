"""The sequences that hold a slot and blocks, and what they share through the prefix cache."""

from bisect import insort

from tandem.facts.blocks import extend_chain
from tandem.machines.pool import BlockPool
from tandem.machines.sequence import Phase, Sequence


class Residents:
    """Owns the slots, the block pool and the list of running sequences, ordered by rank."""

    def __init__(self, slot_count: int, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.running: list[Sequence] = []
        self.free_slots = list(range(slot_count - 1, -1, -1))
        # Hashes of prompt blocks that a running sequence is about to fill: another sequence that
        # needs one waits for it rather than computing it a second time.
        self._filling: dict[bytes, Sequence] = {}

    def filler_of(self, digest: bytes) -> Sequence | None:
        """The running sequence that is about to fill this block, if any."""
        return self._filling.get(digest)

    def blocks_for(self, sequence: Sequence, tokens: int) -> int:
        """How many more blocks the first `tokens` of the sequence need than it has."""
        return -(-tokens // self.block_size) - len(sequence.blocks)

    def start(self, sequence: Sequence, cached_blocks: list[int]) -> None:
        """A waiting sequence takes a slot and shares these cached blocks."""
        self.pool.share(cached_blocks)
        sequence.start(self.free_slots.pop(), cached_blocks, self.block_size)
        insort(self.running, sequence, key=_rank)
        for digest in sequence.chain[sequence.sealed :]:
            self._filling.setdefault(digest, sequence)

    def leave(self, sequence: Sequence, phase: Phase) -> None:
        """A running sequence gives everything back; what it sealed stays in the cache."""
        self.running.remove(sequence)
        self.free_slots.append(sequence.slot)
        self.pool.release(sequence.blocks)
        for digest in sequence.chain[sequence.sealed :]:
            if self._filling.get(digest) is sequence:
                del self._filling[digest]
        sequence.stop(phase)

    def confirm(self, sequence: Sequence, computed_tokens: int, seal: bool) -> None:
        """The KV of the first `computed_tokens` is there; full blocks go into the cache."""
        sequence.confirmed = computed_tokens
        full_blocks = computed_tokens // self.block_size
        if not seal or full_blocks <= sequence.sealed:
            return
        extend_chain(sequence.chain, sequence.root, sequence.tokens, self.block_size)
        for index in range(sequence.sealed, full_blocks):
            digest = sequence.chain[index]
            self.pool.seal(sequence.blocks[index], digest, sequence.parent_hash(index))
            if self._filling.get(digest) is sequence:
                del self._filling[digest]
        sequence.sealed = full_blocks

    def audit(self) -> None:
        """Assert that blocks and slots have exactly the owners that the sequences say."""
        self.pool.audit([sequence.blocks for sequence in self.running])
        slots = [sequence.slot for sequence in self.running] + self.free_slots
        assert sorted(slots) == list(range(len(slots)))
        assert set(self._filling.values()) <= set(self.running)


def _rank(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.rank
