"""A duel: adapters cut over ranks against the same adapters in one process."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.facts.adapter import Adapter
from tandem.kernels.lora import adapter_rows
from tandem.models.adapter_weights import AdaptedTokens, join_adapters, unreadable_adapter
from tandem.models.configuration import read_model_spec
from tandem.models.load import load_adapter
from tests.models.adapter_files import write_adapter
from tests.models.paging import batch_of, poisoned_store
from tests.parallel.ranks import Layout, Ranks, Seat
from tests.parallel.test_logits import CPU, POOL_BLOCKS, PROMPT_TOKENS, Duel

LAYOUTS = (
    Layout(2),
    Layout(4),
    Layout(1, 2),
    Layout(2, 2, sequence_parallel=True),
)
TOLERANCE = 2e-5


@dataclass(frozen=True)
class Adapted:
    """A prompt whose tokens have the two adapters and none in turn; `unreadable_at` that rank the
    first adapter cannot be had."""

    duel: Duel
    adapters: tuple[Adapter, Adapter]
    unreadable_at: int = -1

    def logits(self, seat: Seat | None) -> np.ndarray | None:
        decoder, spec = self.duel.decoder(seat), read_model_spec(self.duel.directory)
        place, kernels = decoder.place, decoder.kernels
        weights = [load_adapter(spec, each, kernels, CPU, place=place) for each in self.adapters]
        if place.rank == self.unreadable_at:
            weights[0] = unreadable_adapter(decoder.spec, kernels, CPU)
        rows = adapter_rows(np.arange(PROMPT_TOKENS, dtype=np.int32) % 3 - 1, 2)
        batch = replace(
            batch_of([self.duel.chunk()]),
            adapted=AdaptedTokens(join_adapters(weights, kernels), rows, rows),
        )
        store, received = poisoned_store(decoder, POOL_BLOCKS), None
        with torch.inference_mode():
            if seat is not None and not place.is_first:
                received = decoder.space_for(PROMPT_TOKENS)
                seat.groups.stages.recv(received, place.stage - 1)
            hidden = decoder.forward(batch, store, received)
            if place.is_last:
                return decoder.logits(hidden).numpy()
            assert seat is not None
            seat.groups.stages.send(hidden, place.stage + 1)
        return None


def share_of_logits(seat: Seat, adapted: Adapted) -> np.ndarray | None:
    return adapted.logits(seat)


@pytest.mark.parametrize("name", ["llama_biased", "qwen3_tied"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_logits_are_those_of_one_rank(
    ranks: Ranks, checkpoints, tmp_path: Path, name: str, layout: Layout
) -> None:
    directory = checkpoints(name).directory
    spec = read_model_spec(directory)
    adapters = (
        write_adapter(tmp_path / "a", spec, rank=6, seed=1, strength=0.5),
        write_adapter(tmp_path / "b", spec, rank=20, seed=2, targets=("v_proj", "down_proj")),
    )
    adapted = Adapted(Duel(directory, torch.float32), adapters)
    wanted = adapted.logits(None)
    drawing = [each for each in ranks.run(layout, share_of_logits, adapted) if each is not None]
    assert len(drawing) == layout.tensor_ranks
    for found in drawing:
        assert np.array_equal(found, drawing[0])
    difference = float(np.abs(drawing[0] - wanted).max())
    assert difference < TOLERANCE if layout.tensor_ranks > 1 else difference == 0.0
    # Where one rank cannot read it, nobody takes what the others have made of it for an answer.
    broken = replace(adapted, unreadable_at=layout.ranks - 1)
    drawing = [each for each in ranks.run(layout, share_of_logits, broken) if each is not None]
    for found in drawing:
        assert np.isnan(found[1::3]).all(1).all()
