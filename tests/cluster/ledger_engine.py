"""An engine made of bookkeeping: it "computes" KV as the identity of everything before a token.

It checks what a real engine can only suffer from: that every key a step attends to was written
for exactly this prefix. A scheduling mistake shows as an assertion, not as a slightly wrong logit.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from tandem.facts.adapter import Adapter
from tandem.facts.request import TokenLogprobs
from tandem.facts.steps import StepPlan, StepResult

VOCABULARY = 11
NONSENSE = b"nonsense"
# Whose KV is each its own.
ADAPTERS = (None, Adapter("a" * 32, "/adapters/a", 1000), Adapter("b" * 32, "/adapters/b", 2000))
# More than there are tokens: KV of an adapter looks like that of other tokens.
KIND = 32


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


def score_at(tokens: Sequence[int], place: int) -> TokenLogprobs:
    """What the toy model thinks of the token there."""
    return TokenLogprobs(-float(next_token(list(tokens[: place + 1]), 0)), place)


def keys_of(tokens: Sequence[int], adapter: Adapter | None = None) -> list[bytes]:
    """The KV of these tokens with this adapter, wherever it was computed."""
    kind = KIND * ADAPTERS.index(adapter)
    marked = bytes(token + kind for token in tokens)
    return [marked[: end + 1] for end in range(len(marked))]


class LedgerEngine:
    """Runs plans; `block_size` slots a block, each remembering the prefix it belongs to. What it
    drafts is right, wrong, too long or no token at all, by `next_token` of what is known."""

    def __init__(self, block_size: int, block_count: int, slot_count: int) -> None:
        self.kept_drafts = self.lost_drafts = 0
        self.block_size = block_size
        self.kv: list[list[bytes]] = [[b""] * block_size for _ in range(block_count)]
        self.tables: list[dict[int, int]] = [{} for _ in range(slot_count)]
        self.tokens: list[list[int]] = [[] for _ in range(slot_count)]
        self.seeds = [0] * slot_count
        self.adapters: list[Adapter | None] = [None] * slot_count
        self.last_step_id = -1

    def run(self, plan: StepPlan) -> StepResult:
        assert plan.step_id == self.last_step_id + 1
        self.last_step_id = plan.step_id
        for placement in plan.placements:
            self.tokens[placement.slot] = list(placement.tokens)
            self.tables[placement.slot] = {}
            self.seeds[placement.slot] = placement.sampling.seed
            self.adapters[placement.slot] = placement.adapter
        for slot, index, block in zip(
            plan.table_slots, plan.table_indices, plan.table_blocks, strict=True
        ):
            self.tables[slot][int(index)] = int(block)
        assert len(set(plan.slots.tolist())) == len(plan.slots)
        scores = self._scores(plan)
        drafts = self._drafts(plan)
        for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
            assert count > len(drafts[int(slot)])
            self.tokens[slot] += drafts[int(slot)]
            for position in range(start, start + count):
                self._write(int(slot), position)
        drawn: list[int] = []
        token_counts: list[int] = []
        proposals: list[tuple[int, ...]] = []
        wanted = plan.proposals if len(plan.proposals) else [0] * len(plan.slots)
        for slot, start, count, samples, wanted_tokens in zip(
            plan.slots, plan.starts, plan.counts, plan.samples, wanted, strict=True
        ):
            self._check(int(slot), int(start + count))
            if samples:
                assert len(self.tokens[slot]) == start + count
                got = self._draw(int(slot), drafts[int(slot)])
                drawn += got
                token_counts.append(len(got))
                proposals.append(self._propose(int(slot), int(wanted_tokens)))
            else:
                assert not drafts[int(slot)]
                assert not wanted_tokens
        return StepResult(
            plan.step_id,
            tuple(drawn),
            token_counts=tuple(token_counts) if any(drafts.values()) else (),
            proposals=tuple(proposals) if any(proposals) else (),
            prompt_logprobs=scores,
        )

    def _scores(self, plan: StepPlan) -> tuple[TokenLogprobs, ...]:
        return tuple(
            score_at(self.tokens[slot], place)
            for slot, start, count in zip(plan.slots, plan.starts, plan.scored_counts, strict=False)
            for place in range(start + 1, start + count + 1)
        )

    def _drafts(self, plan: StepPlan) -> dict[int, list[int]]:
        """By slot."""
        slots = plan.slots.tolist()
        if not len(plan.draft_counts):
            assert not len(plan.draft_tokens)
            return {slot: [] for slot in slots}
        ends = plan.draft_counts.cumsum()
        assert ends[-1] == len(plan.draft_tokens)
        cut = np.split(plan.draft_tokens, ends[:-1])
        return {slot: drafts.tolist() for slot, drafts in zip(slots, cut, strict=True)}

    def _draw(self, slot: int, drafts: list[int]) -> list[int]:
        """The token behind what is known, and behind each draft that is what was drawn."""
        tokens = self.tokens[slot]
        known = len(tokens) - len(drafts)
        got = []
        for place in range(len(drafts) + 1):
            got.append(next_token(tokens[: known + place], self.seeds[slot]))
            if place < len(drafts) and got[-1] != drafts[place]:
                self.lost_drafts += 1
                break
        self.kept_drafts += len(got) - 1
        self.tokens[slot] = tokens[:known] + got
        return got

    def _propose(self, slot: int, wanted: int) -> tuple[int, ...]:
        if not wanted:
            return ()
        tokens, proposal = list(self.tokens[slot]), []
        way = next_token(tokens, 77)
        if way == 0:
            return (VOCABULARY, -1, 2**40)
        for place in range(wanted + (5 if way == 1 else 0)):
            right = next_token(tokens, self.seeds[slot])
            proposal.append((right + (way == 2 + place)) % VOCABULARY)
            tokens.append(proposal[-1])
        return tuple(proposal)

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
        kind = KIND * ADAPTERS.index(self.adapters[slot])
        return bytes(token + kind for token in self.tokens[slot][: position + 1])

    def _write(self, slot: int, position: int) -> None:
        block = self.tables[slot][position // self.block_size]
        self.kv[block][position % self.block_size] = self._identity(slot, position)

    def _check(self, slot: int, end: int) -> None:
        for position in range(end):
            block = self.tables[slot][position // self.block_size]
            held = self.kv[block][position % self.block_size]
            assert held == self._identity(slot, position)
