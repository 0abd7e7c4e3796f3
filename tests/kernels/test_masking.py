"""Masks over logits: both faces, beside the obvious loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.faces import Kernels
from tandem.kernels.native import KernelArgumentError


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 5),
    vocabulary=st.integers(1, 200),
    seed=st.integers(0, 1 << 30),
    dense=st.sampled_from([0.0, 0.03, 0.5, 0.97, 1.0]),
)
def test_both_faces_leave_what_is_allowed(
    native: Kernels, reference: Kernels, rows: int, vocabulary: int, seed: int, dense: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary + 3, generator=generator)[:, :vocabulary]
    logits[torch.rand(rows, vocabulary, generator=generator) < 0.05] = torch.nan
    words = -(-vocabulary // 32)
    bits = torch.rand(rows, words * 32, generator=generator) < dense
    values = (bits.long().view(rows, words, 32) << torch.arange(32)).sum(dim=2)
    allowed = torch.where(values >= 1 << 31, values - (1 << 32), values).int()
    kept = bits[:, :vocabulary] | logits.isnan()
    expected = torch.where(kept, logits, -torch.inf)
    for face in (native, reference):
        found = logits.clone()
        face.mask_logits(found, allowed)
        assert torch.equal(found.nan_to_num(nan=7e9), expected.nan_to_num(nan=7e9))


def test_what_lies_beside_a_row_stays(native: Kernels) -> None:
    logits = torch.ones(2, 70)
    native.mask_logits(logits[:, :37], torch.zeros(2, 2, dtype=torch.int32))
    assert logits[:, :37].isneginf().all()
    assert (logits[:, 37:] == 1).all()
    with pytest.raises(KernelArgumentError, match="allowed_RW"):
        native.mask_logits(logits, torch.zeros(2, 2, dtype=torch.int32))
    with pytest.raises(KernelArgumentError, match="allowed_RW"):
        native.mask_logits(logits, torch.zeros(2, 3))
