"""Low-rank adapters: native against reference, and the laws that a row feels neither its company
nor the adapters of others, and that a row without one is left alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.faces import Kernels
from tandem.kernels.lora import AdapterRows, LowRankPart, PackedLowRank, adapter_rows
from tandem.kernels.native import KernelArgumentError

INPUTS, OUTPUTS = 90, 150
STORAGES = (torch.float32, torch.bfloat16, torch.float16)
# (first output, outputs) of what is fused: all of it, a part, several with a gap between them.
LAYOUTS = (((0, OUTPUTS),), ((64, 30),), ((0, 33), (33, 40), (110, 40)))


def parts_of(seed: int) -> list[LowRankPart]:
    """Those of an adapter whose ranks, storage and targets follow from its seed."""
    generator = torch.Generator().manual_seed(seed)
    dtype = STORAGES[seed % len(STORAGES)]
    parts = []
    for first, outputs in LAYOUTS[seed % len(LAYOUTS)]:
        rank = int(torch.randint(1, 40, (), generator=generator))
        down = torch.randn(rank, INPUTS, generator=generator) / INPUTS**0.5
        up = torch.randn(outputs, rank, generator=generator)
        parts.append(LowRankPart(down.to(dtype), up.to(dtype), 0.5 + seed, first))
    return parts


def numbers(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def rows_of(chosen: list[int], adapters: int) -> AdapterRows:
    return adapter_rows(np.array(chosen, np.int32), adapters)


def added(
    kernels: Kernels, x: torch.Tensor, y: torch.Tensor, seeds: list[int], chosen: list[int]
) -> torch.Tensor:
    """y with what the adapters of these seeds (-1: one that adapts nothing here) add to it."""
    packed: list[PackedLowRank | None] = [
        None if seed < 0 else kernels.pack_low_rank(parts_of(seed), OUTPUTS) for seed in seeds
    ]
    stack = kernels.join_low_rank(packed)
    y = y.clone()
    if stack is not None:
        kernels.add_low_rank(y, x, stack, rows_of(chosen, len(seeds)))
    return y


def operands(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = numbers(rows * INPUTS, 1).view(rows, INPUTS)
    return x, numbers(rows * OUTPUTS, 2).view(rows, OUTPUTS)


@pytest.mark.parametrize("rows", [0, 1, 5, 7, 130])
@pytest.mark.parametrize("face", ["reference", "native"])
def test_a_face_adds_the_product_of_the_matrices(
    request: pytest.FixtureRequest, face: str, rows: int
) -> None:
    kernels = request.getfixturevalue(face)
    x, y = operands(rows)
    seeds, chosen = [0, 1, -1, 2], [row * 7 % 5 - 1 for row in range(rows)]
    wanted = y.double()
    for row, number in enumerate(chosen):
        if number >= 0 and seeds[number] >= 0:
            for part in parts_of(seeds[number]):
                merged = part.up.double() @ part.down.double() * part.scaling
                last = part.first_output + len(merged)
                wanted[row, part.first_output : last] += merged @ x[row].double()
    found = added(kernels, x, y, seeds, chosen)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rows_never_depend_on_their_company(native: Kernels, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 60))
    seeds = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=4, unique=True))
    chosen = data.draw(
        st.lists(st.integers(-1, len(seeds) - 1), min_size=rows, max_size=rows).map(list)
    )
    x, y = operands(rows)
    together = added(native, x, y, seeds, chosen)
    for row, number in enumerate(chosen):
        if number < 0:
            assert torch.equal(together[row], y[row])
        else:
            one = slice(row, row + 1)
            alone = added(native, x[one], y[one], [seeds[number]], [0])
            assert torch.equal(together[one], alone)


@pytest.mark.parametrize("rows", [1, 4, 300])
def test_threads_change_no_bit(native: Kernels, two_threads: None, rows: int) -> None:
    x = numbers(rows * 2048, 3).view(rows, 2048)
    y = numbers(rows * 3000, 4).view(rows, 3000)
    part = LowRankPart(
        numbers(64 * 2048, 5).view(64, 2048), numbers(3000 * 64, 6).view(3000, 64), 2
    )
    stack = native.join_low_rank([native.pack_low_rank([part], 3000)])
    assert stack is not None
    results = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        results.append(y.clone())
        native.add_low_rank(results[-1], x, stack, rows_of([0] * rows, 1))
    assert torch.equal(*results)


def test_strided_rows(native: Kernels) -> None:
    x, y = operands(9)
    wide_x, wide_y = torch.full((9, 200), torch.nan), torch.full((9, 200), 7.0)
    wide_x[:, :INPUTS], wide_y[:, :OUTPUTS] = x, y
    stack = native.join_low_rank([native.pack_low_rank(parts_of(3), OUTPUTS)])
    assert stack is not None
    chosen = [0, -1, 0, 0, -1, 0, 0, 0, 0]
    native.add_low_rank(wide_y[:, :OUTPUTS], wide_x[:, :INPUTS], stack, rows_of(chosen, 1))
    assert torch.equal(wide_y[:, :OUTPUTS], added(native, x, y, [3], chosen))
    assert (wide_y[:, OUTPUTS:] == 7).all()


def test_what_nobody_adapts_has_no_stack(native: Kernels, reference: Kernels) -> None:
    assert native.join_low_rank([None, None]) is None
    assert reference.join_low_rank([]) is None


def test_what_cannot_be_added_is_refused(native: Kernels, reference: Kernels) -> None:
    (part,) = parts_of(0)
    x, y = operands(3)
    with pytest.raises(KernelArgumentError, match="first_output"):
        native.pack_low_rank([part], OUTPUTS - 1)
    with pytest.raises(KernelArgumentError, match="parts"):
        reference.pack_low_rank([part] * 4, OUTPUTS)
    with pytest.raises(KernelArgumentError, match="parts"):
        reference.pack_low_rank([LowRankPart(part.down[:-1], part.up, 1.0)], OUTPUTS)
    stack = native.join_low_rank([native.pack_low_rank([part], OUTPUTS)])
    other = reference.join_low_rank([reference.pack_low_rank([part], OUTPUTS)])
    assert stack is not None
    assert other is not None
    rows = rows_of([0, 0, 0], 1)
    with pytest.raises(KernelArgumentError, match="layout"):
        reference.add_low_rank(y, x, stack, rows)
    with pytest.raises(KernelArgumentError, match="layout"):
        native.add_low_rank(y, x, other, rows)
    with pytest.raises(KernelArgumentError, match="x_TC"):
        native.add_low_rank(y, x[:, 1:], stack, rows)
    with pytest.raises(KernelArgumentError, match="y_TN"):
        native.add_low_rank(y[:, 1:], x, stack, rows)
    with pytest.raises(KernelArgumentError, match=r"rows\.starts"):
        native.add_low_rank(y, x, stack, rows_of([0, 0, 0], 2))


def test_how_much_is_held(reference: Kernels, native: Kernels) -> None:
    part = LowRankPart(torch.zeros(8, 64, dtype=torch.bfloat16), torch.zeros(32, 8), 1.0)
    assert reference.pack_low_rank([part], 32).weight_bytes == 8 * 64 * 2 + 32 * 8 * 4
    # All in float32, and the ranks of A filled up to a whole register.
    assert native.pack_low_rank([part], 32).weight_bytes == (64 * 16 + 8 * 32) * 4


def test_activations_of_half_precision_are_added_to_in_full(reference: Kernels) -> None:
    """As on a GPU: the sums are fp32 and rounded once."""
    x, y = operands(7)
    narrow_x, narrow_y = x.bfloat16(), y.bfloat16()
    chosen = [0, -1, 1, 1, 0, -1, 0]
    found = added(reference, narrow_x, narrow_y, [3, 4], chosen)
    wanted = added(reference, narrow_x.float(), torch.zeros_like(y), [3, 4], chosen)
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, narrow_y + wanted.bfloat16())
    assert torch.equal(found[1], narrow_y[1])
