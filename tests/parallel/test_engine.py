"""A duel: one engine against engines on several ranks that run the same plans.

What the one engine ran is written down: every plan where it was launched, every result where it
landed. The ranks then follow that journal.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.engine.engine import Engine
from tandem.engine.slots import SlotShape
from tandem.facts.model import ModelSpec
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan, StepResult
from tandem.messages.worker import RequestsAborted
from tandem.models.decoder import Decoder
from tandem.models.load import LoadPlan, load_decoder
from tandem.models.parallel import equal_share, kv_share, places
from tandem.models.weights import WeightForm
from tandem.policy.speculation import Speculation
from tests.engine.tiny import (
    CONTEXT_TOKENS,
    CPU,
    VOCABULARY,
    Arithmetic,
    Bench,
    Shape,
)
from tests.engine.tiny import tiny_spec as spec_of_two_layers
from tests.models.paging import poisoned_store
from tests.parallel.ranks import Layout, Ranks, Seat, kernels_for

SHAPE = Shape(block_size=4, blocks=40, max_sequences=4, max_batched_tokens=24, chunk_tokens=9)
NAN_TOKEN = 60
FP32 = WeightForm("float32", torch.float32, CPU)
LAYOUTS = (
    Layout(2),
    Layout(1, 2),
    Layout(2, 2),
    Layout(2, 2, sequence_parallel=True),
    Layout(4, sequence_parallel=True),
    Layout(1, 3),
)

Journal = list[StepPlan | StepResult]


def spec() -> ModelSpec:
    """Neither the layers over two stages nor the features over four ranks come out even."""
    two = spec_of_two_layers(7)
    attention = replace(two.attention, window_tokens=(None, 7, None))
    return replace(two, layers=3, feed_forward_features=46, attention=attention)


def decoder_of(seat: Seat | None) -> Decoder:
    plan = LoadPlan(Path(), FP32, "dummy", seed=3)
    kernels = kernels_for(torch.float32)
    if seat is None:
        return load_decoder(spec(), plan, kernels)
    return load_decoder(spec(), plan, kernels, place=seat.place, collectives=seat.groups.tensor)


class Chronicle(Bench):
    """A worker machine and one engine that keep a journal."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(decoder_of(None), Arithmetic(kernels_for(torch.float32), "float32"), shape)
        self.journal: Journal = []
        self._run = self.engine.run
        self.engine.run = self._note

    def _note(self, plan: StepPlan) -> StepResult:
        self.journal.append(plan)
        return self._run(plan)

    def land(self) -> None:
        if self.landing:
            self.journal.append(self.landing[0])
        super().land()


def busy_morning(shape: Shape) -> Chronicle:
    """Greedy and sampled answers, penalties, logprobs of answers and prompts, chunks, prefix hits,
    more sequences than slots, and sequences that go away while a step of theirs is under way."""
    bench = Chronicle(shape)
    prompt = tuple(range(1, 22))
    wishes = [
        SamplingParameters(temperature=0.0, max_tokens=9, top_logprobs=3, prompt_logprobs=2),
        SamplingParameters(temperature=1.0, seed=5, max_tokens=12, top_logprobs=0),
        SamplingParameters(temperature=1.3, top_p=0.9, seed=6, max_tokens=30),
        SamplingParameters(temperature=0.0, max_tokens=8, repetition_penalty=1.3),
        SamplingParameters(temperature=0.7, top_k=9, seed=7, max_tokens=7, presence_penalty=0.5),
    ]
    for index, sampling in enumerate(wishes):
        bench.ask(Request(f"first {index}", prompt[: 5 + 4 * index], sampling))
    for _ in range(6):
        bench.land()
    bench.handle(RequestsAborted(("first 2",)))
    bench.ask(Request("late", tuple(range(30, 60)), wishes[0]))
    for _ in range(3):
        bench.land()
    bench.handle(RequestsAborted(("first 0",)))
    bench.ask(*(Request(f"last {index}", prompt, wishes[index]) for index in range(3)))
    bench.drain()
    return bench


@dataclass
class Followed:
    """What a rank has in the end: its own results, its share of the KV, the tokens in its slots."""

    results: list[StepResult]
    pool: np.ndarray
    tokens: np.ndarray


def engine_of(seat: Seat, shape: Shape) -> Engine:
    decoder = decoder_of(seat)
    slots = SlotShape(shape.max_sequences, CONTEXT_TOKENS, shape.block_size)
    kv = poisoned_store(decoder, shape.blocks, block_size=shape.block_size)
    return Engine(decoder, kv, slots, threads=1, stages=seat.groups.stages)


def poison(engine: Engine) -> None:
    """From here on the model has no numbers after this token."""
    decoder = engine.decoder
    first, rows = equal_share(VOCABULARY, decoder.place)
    if decoder.place.is_first and first <= NAN_TOKEN < first + rows:
        assert decoder.weights.embedding is not None
        decoder.weights.embedding[NAN_TOKEN - first] = torch.nan


def follow(seat: Seat, shape: Shape, journal: Journal, poisoned: bool = False) -> Followed:
    engine = engine_of(seat, shape)
    if poisoned:
        poison(engine)
    engine.adopt_thread()
    results = []
    for entry in journal:
        if isinstance(entry, StepPlan):
            results.append(engine.launch(entry).result())
        elif not engine.draws:
            engine.take_landed(entry.step_id, entry.tokens, entry.token_counts)
    return Followed(results, engine.kv.pool_BL2KSD.numpy(), engine.slots.tokens.numpy())


@cache
def journal_for(stages: int, proposer: str = "") -> tuple[Shape, Chronicle]:
    """With several stages as many steps are under way; else one is planned ahead."""
    speculation = Speculation(4, adaptive=False) if proposer else None
    shape = replace(
        SHAPE,
        pipeline_stages=stages,
        steps_in_flight=int(stages == 1),
        speculation=speculation,
        proposer=proposer,
    )
    return shape, busy_morning(shape)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_all_ranks_together_say_what_one_says(ranks: Ranks, layout):
    shape, alone = journal_for(layout.stages)
    found = ranks.run(layout, follow, shape, alone.journal)
    landed = {entry.step_id: entry for entry in alone.journal if isinstance(entry, StepResult)}
    drawing = found[-layout.tensor_ranks :]
    assert sum(len(result.tokens) for result in landed.values()) > 50
    for rank in drawing:
        for result in rank.results:
            expected = landed[result.step_id]
            assert result.tokens == expected.tokens
            same_logprobs(result, expected)
    for rank in found[: -layout.tensor_ranks]:
        assert all(result.tokens == () for result in rank.results)
    for rank in found:
        assert np.array_equal(rank.tokens, drawing[0].tokens)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("proposer", ["draft", "draft tree", "hostile"])
def test_all_ranks_together_keep_the_drafts_that_one_keeps(ranks: Ranks, layout, proposer):
    shape, alone = journal_for(layout.stages, proposer)
    totals = alone.machine.drafting.totals
    assert totals.draft_tokens > 20
    assert totals.accepted_tokens < totals.draft_tokens or proposer == "draft"
    assert totals.accepted_tokens > 20 or proposer == "hostile"
    found = ranks.run(layout, follow, shape, alone.journal)
    landed = {entry.step_id: entry for entry in alone.journal if isinstance(entry, StepResult)}
    for rank in found[-layout.tensor_ranks :]:
        for result in rank.results:
            expected = landed[result.step_id]
            assert result.tokens == expected.tokens
            assert result.token_counts == expected.token_counts
            same_logprobs(result, expected)


def same_logprobs(found: StepResult, expected: StepResult) -> None:
    assert len(found.logprobs) == len(expected.logprobs)
    for mine, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-5)
            assert mine.rank == theirs.rank
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


@pytest.mark.parametrize("layout", [Layout(2, 2, sequence_parallel=True), Layout(4)], ids=str)
def test_all_ranks_see_which_rows_have_no_numbers(ranks: Ranks, layout):
    shape = replace(SHAPE, pipeline_stages=layout.stages, steps_in_flight=int(layout.stages == 1))
    bench = Chronicle(shape)
    poison(bench.engine)
    sampling = SamplingParameters(temperature=0.0, max_tokens=6)
    for name, prompt in (("good", range(1, 20)), ("bad", [*range(20, 30), NAN_TOKEN, *range(9)])):
        bench.ask(Request(name, tuple(prompt), sampling))
    bench.drain()
    assert bench.finished.keys() == {"good"}
    landed = {entry.step_id: entry for entry in bench.journal if isinstance(entry, StepResult)}
    assert any(result.failed_rows for result in landed.values())
    found = ranks.run(layout, follow, shape, bench.journal, True)
    for rank in found[-layout.tensor_ranks :]:
        for result in rank.results:
            assert result.failed_rows == landed[result.step_id].failed_rows
            assert result.tokens == landed[result.step_id].tokens


@pytest.mark.parametrize("layout", [Layout(2, 2), Layout(4)], ids=str)
def test_the_shares_of_the_kv_are_the_kv(ranks: Ranks, layout):
    shape, alone = journal_for(layout.stages)
    found = ranks.run(layout, follow, shape, alone.journal)
    whole = alone.engine.kv.pool_BL2KSD.numpy()
    covered = np.zeros(whole.shape[1:4:2], np.int64)
    for place, rank in zip(places(layout.tensor_ranks, layout.stages), found, strict=True):
        share = kv_share(spec(), place)
        layers = slice(share.first_layer, share.first_layer + share.layers)
        heads = slice(share.first_head, share.first_head + share.heads)
        covered[layers, heads] += 1
        np.testing.assert_allclose(rank.pool, whole[:, layers, :, heads], atol=1e-5, rtol=0)
    copies = max(1, layout.tensor_ranks // spec().attention.kv_heads)
    assert (covered == copies).all()


def test_a_token_for_a_slot_that_was_given_away_is_dropped(ranks: Ranks):
    """The journal of a busy morning has such a step; without it the test above shows nothing."""
    _, alone = journal_for(2)
    waiting: dict[int, set[int]] = {}
    given_away = 0
    for entry in alone.journal:
        if isinstance(entry, StepPlan):
            placed = {placement.slot for placement in entry.placements}
            given_away += sum(len(slots & placed) for slots in waiting.values())
            waiting[entry.step_id] = set(entry.slots[entry.samples].tolist())
        else:
            waiting.pop(entry.step_id)
    assert given_away > 0
