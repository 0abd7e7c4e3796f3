"""Where the end of a sequence stood before: both faces, and the plain meaning."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.faces import Kernels
from tandem.kernels.native import KernelArgumentError


def naive_lengths(tokens: list[int]) -> list[int]:
    def common_suffix(a: list[int], b: list[int]) -> int:
        return next((n for n in range(len(a)) if a[-1 - n] != b[-1 - n]), len(a))

    return [common_suffix(tokens[:place], tokens) for place in range(len(tokens))]


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.integers(0, 2), max_size=60) | st.lists(st.integers(0, 60)))
def test_both_faces_find_what_is_there(
    native: Kernels, reference: Kernels, tokens: list[int]
) -> None:
    tokens_N = torch.tensor(tokens, dtype=torch.int32)
    for kernels in (native, reference):
        found = kernels.repeated_suffixes(tokens_N)
        assert found.dtype is torch.int32
        assert found.tolist() == naive_lengths(tokens)


@pytest.mark.parametrize("face", ["native", "reference"])
def test_one_token_over_and_over_takes_no_longer_than_its_length(
    face: str, request: pytest.FixtureRequest
) -> None:
    kernels: Kernels = request.getfixturevalue(face)
    # Comparing each place anew would take two thousand million steps.
    found = kernels.repeated_suffixes(torch.zeros(1 << 16, dtype=torch.int32))
    assert torch.equal(found, torch.arange(1 << 16, dtype=torch.int32))


def test_wrong_arguments_are_refused(native: Kernels) -> None:
    with pytest.raises(KernelArgumentError, match="tokens_N"):
        native.repeated_suffixes(torch.zeros(3))
    with pytest.raises(KernelArgumentError, match="tokens_N"):
        native.repeated_suffixes(torch.zeros(3, 2, dtype=torch.int32))
