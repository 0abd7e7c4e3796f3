"""Speculation with real proposers: answers are those of the plain engine, and drafts are kept as
often as they should be."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from tandem.engine.proposers.draft_kv import BlockContents
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.token_tree import TokenTree
from tandem.policy.speculation import Speculation
from tests.engine.test_engine_laws import DECODERS, EXACT, NATIVE
from tests.engine.tiny import VOCABULARY, Bench, Shape, naive_answer

PROMPT = tuple(range(1, 20))


def speculating(proposer: str, **shape) -> Bench:
    decoder = DECODERS[id(EXACT)][None]
    wanted = {"speculation": Speculation(4, adaptive=False), "proposer": proposer} | shape
    return Bench(decoder, EXACT, Shape(**wanted))


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 4},
        {"temperature": 1.3, "top_p": 0.8, "seed": 9},
    ],
    ids=str,
)
def test_the_model_itself_drafts_what_it_draws(sampling):
    """With the same noise, so that also sampled drafts are all kept."""
    bench = speculating("draft", block_size=4)
    request = Request("a", PROMPT, SamplingParameters(max_tokens=21, **sampling))
    bench.ask(request)
    bench.drain()
    assert bench.answers["a"] == naive_answer(bench.engine.decoder, EXACT, request).tokens
    counts = bench.machine.drafting.totals
    assert counts.accepted_tokens == counts.draft_tokens
    # The first token comes from the prompt's step; then five by five.
    assert bench.steps == 1 + 4
    assert counts.accepted_by_place == (4, 4, 4, 4)


class SecondGuess:
    """Knows the answer, but says something else first: its second branch is right, its first and
    what follows them are not."""

    def __init__(self, answer: list[int]) -> None:
        self._answer = [*PROMPT, *answer, 0, 0, 0]

    def sequences_placed(self, placements) -> None:
        pass

    def propose(self, rows):
        found = []
        for end in rows.ends.tolist():
            one, two, three = self._answer[end : end + 3]
            wrong = (one + 1) % VOCABULARY
            found.append(TokenTree((wrong, one, two, two, wrong, three), (-1, -1, 0, 1, 3, 3)))
        return tuple(found)


@pytest.mark.parametrize("numerics", [EXACT, NATIVE], ids=["reference", "native"])
def test_of_a_tree_the_branch_that_was_drawn_is_kept(numerics):
    """Its KV lies behind that of branches which were not, and goes to where it belongs."""
    decoder = DECODERS[id(numerics)][None]
    request = Request("a", PROMPT, SamplingParameters(max_tokens=21, temperature=0.0))
    plain = Bench(decoder, numerics, Shape(block_size=4))
    plain.ask(request)
    plain.drain()
    speculation = Speculation(6, adaptive=False)
    bench = Bench(decoder, numerics, Shape(block_size=4, speculation=speculation))
    bench.engine._proposer = SecondGuess(plain.answers["a"])
    bench.ask(request)
    bench.drain()
    assert bench.answers["a"] == plain.answers["a"]
    # Four times all three; the last tree has room for less and less.
    assert bench.machine.drafting.totals.accepted_by_place == (5, 4, 4, 0, 0, 0)
    assert bench.steps == 1 + 4 + 3


@pytest.mark.parametrize("kind", ["draft tree", "medusa tree", "eagle tree"])
def test_trees_branch(kind):
    """Not all guesses are each behind the last."""
    bench = speculating(kind, block_size=4)
    seen = []
    run = bench.engine.run
    bench.engine.run = lambda plan: seen.append(plan) or run(plan)
    bench.ask(Request("a", PROMPT, SamplingParameters(max_tokens=21, temperature=1.0)))
    bench.drain()
    assert sum(len(plan.draft_parents) > 0 for plan in seen) > 3
    assert max(len(plan.draft_parents) for plan in seen) == 4


def test_what_a_draft_model_computed_serves_whoever_shares_the_blocks():
    bench = speculating("draft", block_size=4)
    sampling = SamplingParameters(max_tokens=6)
    bench.ask(Request("first", PROMPT, sampling))
    bench.drain()
    drafting = bench.engine._proposer._kv
    seen = []
    batch = drafting.batch
    drafting.batch = lambda rows, chunks: seen.append(len(chunks.tokens)) or batch(rows, chunks)
    bench.ask(Request("second", PROMPT, sampling))
    bench.drain()
    assert bench.answers["first"] == bench.answers["second"]
    # Four blocks of the prompt are known to it; its rest and the first token are computed.
    assert seen[0] == len(PROMPT) + 1 - 16


def test_a_repeating_answer_is_drafted_from_itself():
    bench = speculating("ngram")
    request = Request("a", (5, 6, 7, 8) * 4, SamplingParameters(max_tokens=24, temperature=0.0))
    bench.ask(request)
    bench.drain()
    assert bench.answers["a"] == naive_answer(bench.engine.decoder, EXACT, request).tokens
    assert bench.machine.drafting.totals.drafts > 0


@dataclass
class EqualHeads:
    """Each repeats the model's own guess, and is the surer of it the larger `scale` is."""

    scale: float
    count: int = 3

    def states(self, normed_DC, heads):
        return (self.scale * normed_DC).repeat_interleave(heads, dim=0)


@pytest.mark.parametrize("scale", [0.0, 1e4], ids=["unsure", "sure"])
def test_what_heads_are_not_sure_of_is_looked_up(scale):
    bench = speculating("medusa")
    proposer, slots = bench.engine._proposer, bench.engine.slots
    proposer._heads = EqualHeads(scale)
    propose, looked_up = proposer.propose, []

    def seen(rows):
        found = propose(rows)
        for slot, end, tree in zip(rows.slots, rows.ends, found, strict=True):
            known = slots.tokens[slot, :end].tolist()
            follows = {after for at, after in itertools.pairwise(known) if at == known[-1]}
            if follows:
                looked_up.append(tree.tokens[0] in follows)
            if scale:
                assert tree.tokens == (known[-1],) * len(tree)
        return found

    proposer.propose = seen
    request = Request("a", (5, 6, 7, 8) * 4, SamplingParameters(max_tokens=24, temperature=0.0))
    bench.ask(request)
    bench.drain()
    assert bench.answers["a"] == naive_answer(bench.engine.decoder, EXACT, request).tokens
    assert looked_up
    if not scale:
        assert all(looked_up)


def test_hopeless_drafts_cost_no_answer_and_stop():
    decoder = DECODERS[id(EXACT)][None]
    shape = Shape(speculation=Speculation(4), proposer="hostile", max_sequences=2)
    bench = Bench(decoder, EXACT, shape)
    request = Request("a", PROMPT, SamplingParameters(max_tokens=28))
    bench.ask(request)
    bench.drain()
    assert bench.answers["a"] == naive_answer(decoder, EXACT, request).tokens
    counts = bench.machine.drafting.totals
    assert counts.declined > 0
    assert counts.drafts < 28


def test_blocks_are_known_by_all_tokens_up_to_their_end():
    contents = BlockContents(blocks=8, context_tokens=32, block_size=4)
    tokens, blocks = np.arange(11, dtype=np.int32), np.array([3, 5, 1], np.int32)
    contents.computed(tokens, blocks)
    assert contents.held_tokens(tokens, blocks) == 8
    assert contents.held_tokens(np.append(tokens, 3)[:8], np.array([3, 5], np.int32)) == 8
    changed = tokens.copy()
    changed[1] = 9
    assert contents.held_tokens(changed, blocks) == 0
    changed = tokens.copy()
    changed[6] = 9
    assert contents.held_tokens(changed, blocks) == 4
    # The same tokens elsewhere in the sequence are other content.
    assert contents.held_tokens(tokens[4:8], np.array([5], np.int32)) == 0
    contents.computed(changed, np.array([3, 2, 7], np.int32))
    assert contents.held_tokens(tokens, blocks) == 8
