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
from tandem.facts.token_tree import NO_GUESSES, TokenTree

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
            tree = drafts[int(slot)]
            assert count > len(tree)
            for position in range(start, start + count - len(tree)):
                self._write(int(slot), position, self._identity(int(slot), position))
            for number in range(len(tree)):
                place = start + count - len(tree) + number
                self._write(int(slot), place, self._draft_identity(int(slot), tree, number))
        drawn: list[int] = []
        token_counts: list[int] = []
        proposals: list[TokenTree] = []
        wanted = plan.proposals if len(plan.proposals) else [0] * len(plan.slots)
        for slot, start, count, samples, wanted_tokens in zip(
            plan.slots, plan.starts, plan.counts, plan.samples, wanted, strict=True
        ):
            tree = drafts[int(slot)]
            self._check(int(slot), int(start + count) - len(tree))
            if samples:
                assert len(self.tokens[slot]) + len(tree) == start + count
                got = self._draw(int(slot), tree)
                drawn += got
                token_counts.append(len(got))
                proposals.append(self._propose(int(slot), int(wanted_tokens)))
            else:
                assert not tree
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

    def _drafts(self, plan: StepPlan) -> dict[int, TokenTree]:
        """By slot."""
        slots = plan.slots.tolist()
        if not len(plan.draft_counts):
            assert not len(plan.draft_tokens)
            return dict.fromkeys(slots, NO_GUESSES)
        ends = plan.draft_counts.cumsum()
        assert ends[-1] == len(plan.draft_tokens)
        assert len(plan.draft_parents) in (0, ends[-1])
        cut = zip(
            np.split(plan.draft_tokens, ends[:-1]),
            np.split(plan.draft_parents, ends[:-1]),
            strict=True,
        )
        trees = [TokenTree(tuple(a.tolist()), tuple(b.tolist())) for a, b in cut]
        assert all(tree == tree.sound(2**31, len(tree)) for tree in trees)
        return dict(zip(slots, trees, strict=True))

    def _draw(self, slot: int, tree: TokenTree) -> list[int]:
        """The token behind what is known, and behind each draft that is what was drawn; the KV of
        those goes to where it belongs."""
        tokens, seed = self.tokens[slot], self.seeds[slot]
        known = len(tokens)
        paths = [tree.path(number) for number in range(-1, len(tree))]
        drawn = [next_token([*tokens, *(tree.tokens[at] for at in path)], seed) for path in paths]
        path = tree.walk(drawn)
        self.lost_drafts += len(path) < len(tree)
        self.kept_drafts += len(path)
        for place, number in enumerate(path):
            self._write(slot, known + place, self._draft_identity(slot, tree, number))
        got = [drawn[0], *(drawn[number + 1] for number in path)]
        self.tokens[slot] = tokens + got
        return got

    def _propose(self, slot: int, wanted: int) -> TokenTree:
        if not wanted:
            return NO_GUESSES
        tokens, proposal = list(self.tokens[slot]), []
        way = next_token(tokens, 77)
        if way == 0:
            return TokenTree((VOCABULARY, -1, 2**40))
        if way == 4:
            # Two guesses for the next place, the first one wrong, and what follows each.
            right = next_token(tokens, self.seeds[slot])
            later = next_token([*tokens, right], self.seeds[slot])
            wrong = (right + 1) % VOCABULARY
            return TokenTree((wrong, right, later, later, 3), (-1, -1, 0, 1, 3))
        if way == 5:
            return TokenTree((1, 2, 3), (-1, 1, 0) if wanted > 1 else (0,))
        for place in range(wanted + (5 if way == 1 else 0)):
            right = next_token(tokens, self.seeds[slot])
            proposal.append((right + (way == 2 + place)) % VOCABULARY)
            tokens.append(proposal[-1])
        return TokenTree(tuple(proposal))

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

    def _draft_identity(self, slot: int, tree: TokenTree, number: int) -> bytes:
        kind = KIND * ADAPTERS.index(self.adapters[slot])
        path = [tree.tokens[at] for at in tree.path(number)]
        return bytes(token + kind for token in (*self.tokens[slot], *path))

    def _write(self, slot: int, position: int, identity: bytes) -> None:
        block = self.tables[slot][position // self.block_size]
        self.kv[block][position % self.block_size] = identity

    def _check(self, slot: int, end: int) -> None:
        for position in range(end):
            block = self.tables[slot][position // self.block_size]
            held = self.kv[block][position % self.block_size]
            assert held == self._identity(slot, position)
