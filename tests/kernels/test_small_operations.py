"""Normalisation, activations, rotation and the pool write: native against reference."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.facts.model import Activation, NormSpec
from tandem.kernels.arithmetic import ACTIVATIONS
from tandem.kernels.faces import Kernels
from tandem.kernels.kv_rows import SCALE_BYTES, decode_rows, row_elements
from tandem.kernels.native import KernelArgumentError
from tandem.kernels.rotary import QueryKeyValue, RotaryTable, TokenPlaces
from tandem.kv.codec import decode, encode

WIDTHS = [1, 7, 16, 31, 33, 64, 896]
NORM = NormSpec(eps=1e-6)


@pytest.mark.parametrize("features", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 200])
@pytest.mark.parametrize("norm", [NORM, NormSpec(eps=1e-5, offset=1.0)])
def test_norm(
    native: Kernels, reference: Kernels, features: int, rows: int, norm: NormSpec
) -> None:
    x_TC, residual_TC = torch.randn(2, rows, features) * 3
    weight_C = torch.randn(features)
    wanted = reference.rms_norm(x_TC.double(), weight_C.double(), norm)
    found = native.rms_norm(x_TC, weight_C, norm)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    wanted, total = reference.add_rms_norm(x_TC, residual_TC, weight_C, norm)
    found, sums = native.add_rms_norm(x_TC, residual_TC.clone(), weight_C, norm)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(sums, total)


def test_an_offset_is_added_to_the_weights(native: Kernels, reference: Kernels) -> None:
    x_TC, weight_C = torch.randn(9, 33), torch.randn(33)
    for kernels in (native, reference):
        found = kernels.rms_norm(x_TC, weight_C, NormSpec(offset=1.0))
        assert torch.equal(found, kernels.rms_norm(x_TC, weight_C + 1.0, NormSpec()))


def test_norm_of_heads_inside_a_projection(native: Kernels, reference: Kernels) -> None:
    fused_TX = torch.randn(11, 5 * 24 + 6)
    heads_THD = fused_TX[:, 6:].view(11, 5, 24)
    weight_D = torch.randn(24)
    found = native.rms_norm(heads_THD, weight_D, NormSpec(eps=1e-5))
    assert found.is_contiguous()
    torch.testing.assert_close(found, reference.rms_norm(heads_THD, weight_D, NormSpec(eps=1e-5)))


@pytest.mark.parametrize("features", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 100])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_activation(
    native: Kernels, reference: Kernels, features: int, rows: int, activation: Activation
) -> None:
    gate_up_T2F = torch.randn(rows, 2 * features) * 4
    found = native.gated_activation(gate_up_T2F, activation)
    # In single precision the reference is no better: 1 + tanh(x) cancels.
    wanted = reference.gated_activation(gate_up_T2F.double(), activation)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_activation_at_the_edges(
    native: Kernels, reference: Kernels, activation: Activation
) -> None:
    gate = torch.tensor([-1e4, -200.0, -88.0, -87.0, -0.0, 0.0, 88.0, 1e4, 3e38])
    gate_up_T2F = torch.cat([gate, torch.ones(9)])[None]
    found = native.gated_activation(gate_up_T2F, activation)
    expected = reference.gated_activation(gate_up_T2F, activation)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("features", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 100])
@pytest.mark.parametrize("gated", [False, True])
def test_gelu(native: Kernels, reference: Kernels, features: int, rows: int, gated: bool) -> None:
    x_TN = torch.randn(rows, 2 * features) * 4
    wanted = reference.gelu(x_TN.double(), gated=gated)
    found = native.gelu(x_TN, gated=gated)
    # What is off by 1e-7 times x is multiplied by the other half.
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-5 if gated else 1e-6)


def test_gelu_at_the_edges(native: Kernels, reference: Kernels) -> None:
    x_1F = torch.tensor([[-1e30, -200.0, -13.0, -5.0, -1e-20, -0.0, 0.0, 1e-20, 5.0, 13.0, 1e30]])
    torch.testing.assert_close(native.gelu(x_1F), reference.gelu(x_1F), rtol=1e-6, atol=1e-6)
    assert native.gelu(torch.tensor([[torch.nan, 1.0]])).isnan().tolist() == [[True, False]]


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(2, 400), features=st.sampled_from([33, 260]), data=st.data())
def test_rows_never_depend_on_their_company(
    native: Kernels, rows: int, features: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, rows - 1))
    x_TC, weight_C = torch.randn(rows, features), torch.randn(features)
    whole = native.rms_norm(x_TC, weight_C, NORM)
    parts = [native.rms_norm(part, weight_C, NORM) for part in (x_TC[:cut], x_TC[cut:])]
    assert torch.equal(torch.cat(parts), whole)
    gate_up_T2F = torch.randn(rows, 2 * features)
    gates = [partial(native.gated_activation, activation=each) for each in ACTIVATIONS]
    gates += [native.gelu, partial(native.gelu, gated=True)]
    for gate in gates:
        parts = [gate(part) for part in (gate_up_T2F[:cut], gate_up_T2F[cut:])]
        assert torch.equal(torch.cat(parts), gate(gate_up_T2F))


def rotary_table(positions: int, half: int) -> RotaryTable:
    angle_PR = torch.arange(positions)[:, None] * 0.7 ** torch.arange(half)
    return RotaryTable(angle_PR.cos(), angle_PR.sin())


def projection(tokens: int, head_dim: int, seed: int = 3) -> QueryKeyValue:
    """Three query heads and two kv heads as views of one fused result."""
    generator = torch.Generator().manual_seed(seed)
    fused = torch.randn(tokens, 7, head_dim, generator=generator)
    return QueryKeyValue(fused[:, :3], fused[:, 3:5], fused[:, 5:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("head_dim", "half"), [(64, 32), (80, 20), (24, 12), (128, 64), (6, 3)])
def test_rotate_and_store(
    native: Kernels, reference: Kernels, head_dim: int, half: int, dtype: torch.dtype
) -> None:
    tokens = 40
    places = TokenPlaces(torch.randint(0, 100, (tokens,)), torch.randperm(60)[:tokens])
    places.slots[7] = -1
    pools = []
    for kernels in (native, reference):
        heads = projection(tokens, head_dim)
        pool = torch.full((6, 3, 2, 2, 10, head_dim), torch.nan, dtype=dtype)
        kernels.rotate_and_store(heads, pool[:, 1], rotary_table(100, half), places)
        pools.append((pool, heads))
    (found, found_heads), (wanted, wanted_heads) = pools
    torch.testing.assert_close(found_heads.q, wanted_heads.q, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found_heads.k, wanted_heads.k, rtol=1e-6, atol=1e-6)
    assert torch.equal(found_heads.v, wanted_heads.v)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert torch.equal(found.isnan(), wanted.isnan())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stored_values_are_rounded_as_torch_rounds(native: Kernels, dtype: torch.dtype) -> None:
    bits = torch.randint(-(2**31), 2**31, (500, 1, 64), dtype=torch.int64).to(torch.int32)
    values = bits.view(torch.float32)
    values[:50] = torch.randn(50, 1, 64) * 2.0 ** torch.randint(-26, -12, (50, 1, 64))
    values[50] = torch.tensor([65504.0, 65519.9, 65520.0, torch.inf]).repeat(16)
    pool = torch.zeros(500, 1, 2, 1, 1, 64, dtype=dtype)
    heads = QueryKeyValue(values.clone(), values.clone(), values.clone())
    native.rotate_and_store(
        heads, pool[:, 0], None, TokenPlaces(torch.zeros(500).long(), torch.arange(500))
    )
    for side in (0, 1):
        stored = pool[:, 0, side, :, 0]
        torch.testing.assert_close(stored, values.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("face", ["native", "reference"])
@pytest.mark.parametrize("head_dim", [6, 24, 64])
def test_stored_codes_are_those_of_the_codec(
    face: str, head_dim: int, request: pytest.FixtureRequest
) -> None:
    kernels: Kernels = request.getfixturevalue(face)
    generator = torch.Generator().manual_seed(head_dim)
    sizes = 2.0 ** torch.randint(-140, 120, (60, 1, 1), generator=generator)
    values = torch.randn(60, 1, head_dim, generator=generator) * sizes
    values[3] = 0.0
    values[4, 0, 1], values[5, 0, 0], values[6, 0, 2] = torch.inf, -torch.inf, torch.nan
    pool = torch.zeros(60, 1, 2, 1, 1, row_elements(torch.int8, head_dim), dtype=torch.int8)
    heads = QueryKeyValue(values.clone(), values.clone(), values.clone())
    kernels.rotate_and_store(
        heads, pool[:, 0], None, TokenPlaces(torch.zeros(60).long(), torch.arange(60))
    )
    wanted = torch.from_numpy(encode(values[:, 0].numpy(), "int8").copy()).view(torch.int8)
    for side in (0, 1):
        stored = pool[:, 0, side, 0, 0]
        assert torch.equal(stored[:, SCALE_BYTES:], wanted[:, SCALE_BYTES:])
        found_scale, wanted_scale = (
            each[:, :SCALE_BYTES].contiguous().view(torch.float32) for each in (stored, wanted)
        )
        torch.testing.assert_close(found_scale, wanted_scale, rtol=0, atol=0, equal_nan=True)
        decoded = torch.from_numpy(decode(stored.contiguous().view(torch.uint8).numpy(), "int8"))
        torch.testing.assert_close(decode_rows(stored), decoded, rtol=0, atol=0, equal_nan=True)


def test_wrong_shapes_are_refused(native: Kernels) -> None:
    with pytest.raises(KernelArgumentError, match="x_TC"):
        native.rms_norm(torch.ones(2, 3), torch.ones(4), NORM)
    with pytest.raises(KernelArgumentError, match="gate_up_T2F"):
        native.gated_activation(torch.ones(2, 3), "silu")
    with pytest.raises(KernelArgumentError, match="gate_up_T2F"):
        native.gelu(torch.ones(2, 3), gated=True)
    places = TokenPlaces(torch.zeros(2).long(), torch.zeros(2).long())
    with pytest.raises(KernelArgumentError, match="kv_B2KSD"):
        native.rotate_and_store(projection(2, 8), torch.ones(3, 2, 2, 4, 16), None, places)
