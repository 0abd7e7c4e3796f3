"""A duel: a model spread over ranks against the same model in one process."""

import random
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.models.configuration import read_model_spec
from tandem.models.decoder import Decoder
from tandem.models.load import LoadPlan, load_decoder
from tandem.models.weights import WeightForm
from tests.models.paging import Chunk, batch_of, poisoned_store, run_in_steps
from tests.parallel.ranks import Layout, Ranks, Seat, kernels_for

CPU = torch.device("cpu")
POOL_BLOCKS = 16
PROMPT_TOKENS = 23
# A whole prompt; chunks, and then token by token.
WAYS = ((), (3, 4, 17, 18, 19, 20, 21, 22))
VARIANTS = (
    "llama3",
    "llama3_tied",
    "llama_biased",
    "mistral_window",
    "qwen2",
    "qwen2_window",
    "qwen3",
    "qwen3_tied",
)
LAYOUTS = (Layout(2), Layout(4), Layout(1, 2), Layout(2, 2))
UNUSUAL_LAYOUTS = (
    Layout(2, sequence_parallel=True),
    Layout(4, sequence_parallel=True),
    Layout(2, 2, sequence_parallel=True),
    Layout(4, all_reduce="two-shot"),
    Layout(4, all_reduce="library"),
)
CASES = [(name, layout) for name in VARIANTS for layout in LAYOUTS] + [
    (name, layout) for name in ("llama_biased", "qwen3_tied") for layout in UNUSUAL_LAYOUTS
]
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Duel:
    directory: Path
    dtype: torch.dtype

    def chunk(self) -> Chunk:
        dice = random.Random(3)
        tokens = dice.choices(range(199), k=PROMPT_TOKENS)
        return Chunk(tokens, dice.sample(range(POOL_BLOCKS), 6), 0, PROMPT_TOKENS)

    @property
    def storage(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def decoder(self, seat: Seat | None) -> Decoder:
        spec = read_model_spec(self.directory)
        plan = LoadPlan(self.directory, WeightForm(self.storage, self.dtype, CPU))
        kernels = kernels_for(self.dtype)
        if seat is None:
            return load_decoder(spec, plan, kernels)
        return load_decoder(spec, plan, kernels, place=seat.place, collectives=seat.groups.tensor)


def share_of_logits(seat: Seat, duel: Duel) -> list[np.ndarray] | None:
    """What this rank has for logits of each way, if it has any."""
    found = [run_stages(seat, duel, steps) for steps in WAYS]
    return [torch.cat(pieces).numpy() for pieces in found] if seat.drawing else None


def run_stages(seat: Seat, duel: Duel, steps: tuple[int, ...]) -> list[torch.Tensor]:
    decoder, chunk = duel.decoder(seat), duel.chunk()
    store = poisoned_store(decoder, POOL_BLOCKS, duel.storage)
    pieces = []
    with torch.inference_mode():
        for start, stop in pairwise([0, *steps, PROMPT_TOKENS]):
            batch = batch_of([Chunk(chunk.tokens, chunk.blocks, start, stop)])
            received = None
            if not seat.place.is_first:
                received = decoder.space_for(stop - start)
                seat.groups.stages.recv(received, seat.place.stage - 1)
            hidden = decoder.forward(batch, store, received)
            if seat.drawing:
                pieces.append(decoder.logits(hidden))
            else:
                seat.groups.stages.send(hidden, seat.place.stage + 1)
    return pieces


@cache
def logits_of_one_rank(duel: Duel) -> list[np.ndarray]:
    alone = duel.decoder(None)
    return [
        run_in_steps(
            alone, poisoned_store(alone, POOL_BLOCKS, duel.storage), duel.chunk(), steps
        ).numpy()
        for steps in WAYS
    ]


def compare(ranks: Ranks, layout: Layout, duel: Duel) -> float:
    """The largest difference from one rank. All ranks that draw have the same bits, and with
    kernels that keep a row's bits apart from its company, so has every way of cutting a prompt."""
    drawing = [found for found in ranks.run(layout, share_of_logits, duel) if found is not None]
    assert len(drawing) == layout.tensor_ranks
    difference = 0.0
    for index, expected in enumerate(logits_of_one_rank(duel)):
        difference = max(difference, float(np.abs(drawing[0][index] - expected).max()))
        for of_rank in drawing:
            assert np.array_equal(of_rank[index], drawing[0][index])
    if kernels_for(duel.dtype).batch_invariant and layout.all_reduce != "library":
        assert np.array_equal(drawing[0][0], drawing[0][1])
    return difference


@pytest.mark.parametrize(("name", "layout"), CASES, ids=str)
def test_the_logits_are_those_of_one_rank(ranks: Ranks, checkpoints, name, layout):
    duel = Duel(checkpoints(name).directory, torch.float32)
    difference = compare(ranks, layout, duel)
    # Stages do the same arithmetic in the same order; tensor ranks add in another one.
    assert difference < TOLERANCE if layout.tensor_ranks > 1 else difference == 0.0


@pytest.mark.parametrize("layout", [Layout(4), Layout(2, 2, sequence_parallel=True)], ids=str)
def test_in_float64_hardly_a_bit_differs(ranks: Ranks, checkpoints, layout):
    assert compare(ranks, layout, Duel(checkpoints("qwen2").directory, torch.float64)) < 1e-12


def tokens_held(seat: Seat, duel: Duel, tokens: int) -> int:
    return len(duel.decoder(seat).space_for(tokens))


def test_between_the_linears_each_rank_holds_a_share_of_the_tokens(ranks: Ranks, checkpoints):
    duel = Duel(checkpoints("llama3").directory, torch.float32)
    assert ranks.run(Layout(2, sequence_parallel=True), tokens_held, duel, 5) == [3, 3]
    assert ranks.run(Layout(2), tokens_held, duel, 5) == [5, 5]
