"""An engine made of bookkeeping: it "computes" KV as the identity of everything before a token.

It checks what a real engine can only suffer from: that every key a step attends to was written
for exactly this prefix. A scheduling mistake shows as an assertion, not as a slightly wrong logit.
"""

from collections.abc import Sequence
from hashlib import blake2b

from tandem.facts.steps import StepPlan, StepResult

VOCABULARY = 11
NONSENSE = b"nonsense"


def next_token(tokens: list[int], seed: int) -> int:
    """What the toy model says after these tokens; a pure function, like the real one."""
    digest = blake2b(bytes(tokens) + seed.to_bytes(8, "little"), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def answer(prompt: tuple[int, ...], sampling, context_tokens: int) -> list[int]:
    """The answer to one request computed alone and naively."""
    tokens = list(prompt)
    limit_tokens = min(len(prompt) + sampling.max_tokens, context_tokens)
    while len(tokens) < limit_tokens:
        token = next_token(tokens, sampling.seed)
        tokens.append(token)
        drawn = len(tokens) - len(prompt)
        if token in sampling.stop_token_ids and drawn > sampling.min_tokens:
            break
    return tokens[len(prompt) :]


def keys_of(tokens: Sequence[int]) -> list[bytes]:
    """The KV of these tokens, wherever it was computed."""
    return [bytes(tokens[: end + 1]) for end in range(len(tokens))]


class LedgerEngine:
    """Runs plans; `block_size` slots a block, each remembering the prefix it belongs to."""

    def __init__(self, block_size: int, block_count: int, slot_count: int) -> None:
        self.block_size = block_size
        self.kv: list[list[bytes]] = [[b""] * block_size for _ in range(block_count)]
        self.tables: list[dict[int, int]] = [{} for _ in range(slot_count)]
        self.tokens: list[list[int]] = [[] for _ in range(slot_count)]
        self.seeds = [0] * slot_count
        self.last_step_id = -1

    def run(self, plan: StepPlan) -> StepResult:
        assert plan.step_id == self.last_step_id + 1
        self.last_step_id = plan.step_id
        for placement in plan.placements:
            self.tokens[placement.slot] = list(placement.tokens)
            self.tables[placement.slot] = {}
            self.seeds[placement.slot] = placement.sampling.seed
        for slot, index, block in zip(
            plan.table_slots, plan.table_indices, plan.table_blocks, strict=True
        ):
            self.tables[slot][int(index)] = int(block)
        assert len(set(plan.slots.tolist())) == len(plan.slots)
        for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
            assert count > 0
            for position in range(start, start + count):
                self._write(int(slot), position)
        drawn = []
        for slot, start, count, samples in zip(
            plan.slots, plan.starts, plan.counts, plan.samples, strict=True
        ):
            end = int(start + count)
            self._check(int(slot), end)
            if samples:
                tokens = self.tokens[slot]
                assert len(tokens) == end
                drawn.append(next_token(tokens, self.seeds[slot]))
                tokens.append(drawn[-1])
        return StepResult(plan.step_id, tuple(drawn))

    def spoil(self, blocks: Sequence[int]) -> None:
        """Nonsense in these blocks: no prefix looks like it."""
        for block in blocks:
            self.kv[block] = [NONSENSE] * self.block_size

    def read(self, blocks: Sequence[int], tokens: int) -> list[bytes]:
        """What lies there for the first `tokens` tokens of a sequence with these blocks."""
        return [key for block in blocks for key in self.kv[block]][:tokens]

    def write(self, blocks: Sequence[int], keys: list[bytes]) -> None:
        """Put KV that was read elsewhere into these blocks, from the first on."""
        for index, key in enumerate(keys):
            self.kv[blocks[index // self.block_size]][index % self.block_size] = key

    def _identity(self, slot: int, position: int) -> bytes:
        return bytes(self.tokens[slot][: position + 1])

    def _write(self, slot: int, position: int) -> None:
        block = self.tables[slot][position // self.block_size]
        self.kv[block][position % self.block_size] = self._identity(slot, position)

    def _check(self, slot: int, end: int) -> None:
        for position in range(end):
            block = self.tables[slot][position // self.block_size]
            held = self.kv[block][position % self.block_size]
            assert held == self._identity(slot, position)
