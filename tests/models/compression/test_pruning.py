"""As many zeros as were asked for, where they matter least."""

import pytest
import torch

from tandem.models.compression.pruning import prune
from tandem.models.compression.scheme import PruningPlan
from tests.models.compression.matrices import inputs, weight


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_every_row_has_its_share_of_zeros(share: float) -> None:
    weight_NC = weight(1)
    pruned = prune(weight_NC, PruningPlan("magnitude", share), None)
    assert (pruned == 0).sum(dim=1).tolist() == [round(share * 64)] * 24
    kept = pruned != 0
    assert torch.equal(pruned[kept], weight_NC[kept])
    for row, keep in zip(weight_NC.abs(), kept, strict=True):
        assert row[keep].min() >= row[~keep].max()


def test_two_of_every_four() -> None:
    pruned = prune(weight(2), PruningPlan("magnitude", 0.5, of_four=True), None)
    assert (pruned.view(-1, 4) == 0).sum(dim=1).unique().tolist() == [2]


def test_wanda_weighs_inputs() -> None:
    weight_NC = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    square_C = torch.tensor([100.0, 1.0, 4.0, 0.25])
    pruned = prune(weight_NC, PruningPlan("wanda", 0.5), square_C)
    # Importance: 10, 2, 6, 2.
    assert pruned.tolist() == [[1, 0, 3, 0]]


@pytest.mark.parametrize("seed", range(3))
def test_wanda_changes_outputs_less_than_magnitude(seed: int) -> None:
    weight_NC, x_TC = weight(seed), inputs(seed)
    errors = [
        (x_TC @ (prune(weight_NC, PruningPlan("wanda", 0.5), square_C) - weight_NC).T).norm()
        for square_C in (x_TC.square().sum(0), None)
    ]
    assert errors[0] < errors[1]
