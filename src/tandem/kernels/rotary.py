"""Rotary embedding and the KV write, between the projections and attention: rotate q and k, store k
and v; and the table of cos and sin, scaled as a model's configuration says.

Axes: T packed tokens, H query heads, K kv heads, D head dim, P positions, R half the rotary dim,
B blocks, S slots a block. The pool is [B, layer, 2, K, S, D]; kv_B2KSD is one layer's strided view
(D of codes: `kv_rows`).
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem.facts.model import (
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    RopeSpec,
    YarnScaling,
)
from tandem.kernels.arguments import DTYPE_CODES, require_rows, require_whole
from tandem.kernels.kv_rows import encode_rows, row_elements
from tandem.kernels.native import (
    Integer,
    IntegerArray,
    KernelArgumentError,
    NativeLibrary,
    Pointer,
    integers,
)


@dataclass(frozen=True)
class RotaryTable:
    """cos and sin [P, R] of angle(position, pair); pairs are (i, i + R) of the first 2R dims."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True)
class TokenPlaces:
    """int64 [T]: positions, and slots (block * block_size + offset; -1 stores nothing)."""

    positions: Tensor
    slots: Tensor

    def __post_init__(self) -> None:
        # Once a step, so that no layer has to look again.
        for name, tensor in (("positions", self.positions), ("slots", self.slots)):
            if tensor.dtype is not torch.int64 or tensor.dim() != 1 or not tensor.is_contiguous():
                raise KernelArgumentError(name, tensor.dtype, "contiguous int64 [T]")


@dataclass(frozen=True)
class QueryKeyValue:
    """q [T, H, D], k and v [T, K, D]: views of a fused projection; only D must be contiguous."""

    q: Tensor
    k: Tensor
    v: Tensor


class RotateAndStore(Protocol):
    def __call__(
        self,
        heads: QueryKeyValue,
        kv_B2KSD: Tensor,
        table: RotaryTable | None,
        places: TokenPlaces,
    ) -> None:
        """Rotates q and k in place (no table: not at all), then writes k and v into the pool."""
        ...


def check_rotate(
    heads: QueryKeyValue, kv_B2KSD: Tensor, table: RotaryTable | None, places: TokenPlaces
) -> None:
    tokens, kv_heads, head_dim = heads.k.shape
    if places.positions.shape[0] != tokens or places.slots.shape[0] != tokens:
        found = (places.positions.shape[0], places.slots.shape[0])
        raise KernelArgumentError("places", found, f"{tokens} positions and slots")
    if heads.v.shape != heads.k.shape:
        raise KernelArgumentError("heads.v", tuple(heads.v.shape), "the shape of heads.k")
    if heads.q.shape[0] != tokens or heads.q.shape[2] != head_dim:
        raise KernelArgumentError(
            "heads.q", tuple(heads.q.shape), f"[{tokens}, H, {head_dim}], as heads.k says"
        )
    pool, elements = kv_B2KSD.shape, row_elements(kv_B2KSD.dtype, head_dim)
    if len(pool) != 5 or (pool[1], pool[2], pool[4]) != (2, kv_heads, elements):
        raise KernelArgumentError("kv_B2KSD", tuple(pool), f"[B, 2, {kv_heads}, S, {elements}]")
    if table is not None and 2 * table.cos.shape[1] > head_dim:
        raise KernelArgumentError("table.cos", tuple(table.cos.shape), f"R <= {head_dim // 2}")


def rotate_and_store(
    heads: QueryKeyValue, kv_B2KSD: Tensor, table: RotaryTable | None, places: TokenPlaces
) -> None:
    """The reference, for any device and dtype."""
    check_rotate(heads, kv_B2KSD, table, places)
    if table is not None:
        cos_T1R = table.cos[places.positions][:, None]
        sin_T1R = table.sin[places.positions][:, None]
        rotate_in_place(heads.q, cos_T1R, sin_T1R)
        rotate_in_place(heads.k, cos_T1R, sin_T1R)
    store(heads.k, kv_B2KSD[:, 0], places.slots)
    store(heads.v, kv_B2KSD[:, 1], places.slots)


def rotate_in_place(x_THD: Tensor, cos_T1R: Tensor, sin_T1R: Tensor) -> None:
    half = cos_T1R.shape[-1]
    wide = torch.promote_types(x_THD.dtype, torch.float32)
    # A copy: both results need the first half as it was.
    first = x_THD[..., :half].to(wide, copy=True)
    second = x_THD[..., half : 2 * half].to(wide)
    x_THD[..., :half] = first * cos_T1R - second * sin_T1R
    x_THD[..., half : 2 * half] = second * cos_T1R + first * sin_T1R


def store(x_TKD: Tensor, pool_BKSD: Tensor, slot_T: Tensor) -> None:
    block_size = pool_BKSD.shape[2]
    kept = slot_T >= 0
    slot = slot_T[kept]
    # Indexing by (block, :, offset) yields [T, K, D]: the shape of the rows to be written.
    pool_BKSD[slot // block_size, :, slot % block_size] = encode_rows(x_TKD[kept], pool_BKSD.dtype)


class NativeRotateAndStore:
    """float32 heads, four pool precisions. Tables must be contiguous float32, positions and slots
    contiguous int64."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_rotate_and_store",
            *(Pointer, Pointer, Pointer, IntegerArray, IntegerArray, Integer, Pointer, Pointer),
            *(Pointer, Pointer, Pointer, Integer, IntegerArray, Integer),
        )

    def __call__(
        self,
        heads: QueryKeyValue,
        kv_B2KSD: torch.Tensor,
        table: RotaryTable | None,
        places: TokenPlaces,
    ) -> None:
        check_rotate(heads, kv_B2KSD, table, places)
        q, k, v = heads.q, heads.k, heads.v
        require_rows("heads.q", q)
        require_rows("heads.k", k)
        require_rows("heads.v", v)
        if table is not None:
            require_whole("table.cos", table.cos, torch.float32)
            require_whole("table.sin", table.sin, torch.float32)
        tokens, query_heads, head_dim = q.shape
        half = 0 if table is None else table.cos.shape[1]
        shape = (query_heads, k.shape[1], head_dim, half, kv_B2KSD.shape[3])
        self.run(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            integers(q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1)),
            integers(*shape),
            tokens,
            None if table is None else table.cos.data_ptr(),
            None if table is None else table.sin.data_ptr(),
            places.positions.data_ptr(),
            places.slots.data_ptr(),
            kv_B2KSD.data_ptr(),
            DTYPE_CODES[kv_B2KSD.dtype],
            integers(*kv_B2KSD.stride()[:4]),
            torch.get_num_threads(),
        )


def rotary_table(
    rope: RopeSpec, head_dim: int, positions: int, device: torch.device
) -> RotaryTable:
    """float32 tables [P, R] on `device`.

    Formulas and their order of rounding follow transformers (modeling_rope_utils.py), because
    angles at far positions are sensitive to the last bit of a frequency.
    """
    frequencies_R, amplitude = rotary_frequencies(rope, head_dim)
    angles_PR = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies_R
    cos_PR = angles_PR.cos().mul_(amplitude)
    sin_PR = angles_PR.sin_().mul_(amplitude)
    return RotaryTable(cos_PR.to(device), sin_PR.to(device))


def rotary_frequencies(rope: RopeSpec, head_dim: int) -> tuple[Tensor, float]:
    """Radians a position for each pair, float32 [R], and the factor on cos and sin."""
    rotary_dim = rope.rotary_dim(head_dim)
    exponents_R = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    wavelengths_R = rope.theta**exponents_R
    match rope.scaling:
        case None:
            return 1.0 / wavelengths_R, 1.0
        case LinearScaling(factor=factor):
            return 1.0 / wavelengths_R / factor, 1.0
        case FactorScaling(factors=factors):
            return 1.0 / wavelengths_R / torch.tensor(factors, dtype=torch.float32), 1.0
        case Llama3Scaling() as llama3:
            return _llama3(1.0 / wavelengths_R, llama3), 1.0
        case YarnScaling() as yarn:
            return _yarn(wavelengths_R, rope.theta, yarn), yarn.attention_factor


def _llama3(plain_R: Tensor, scaling: Llama3Scaling) -> Tensor:
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    original_tokens, factor = scaling.original_context_tokens, scaling.factor
    wavelength_tokens_R = 2 * math.pi / plain_R
    slow_R = wavelength_tokens_R > original_tokens / low
    fast_R = wavelength_tokens_R < original_tokens / high
    blend_R = (original_tokens / wavelength_tokens_R - low) / (high - low)
    blended_R = (1 - blend_R) * plain_R / factor + blend_R * plain_R
    return torch.where(slow_R, plain_R / factor, torch.where(fast_R, plain_R, blended_R))


def _yarn(wavelengths_R: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    rotary_dim = 2 * wavelengths_R.shape[0]

    def dimension_turning(turns: float) -> float:
        """The dimension that turns so often over the original context."""
        tokens_a_radian = scaling.original_context_tokens / (turns * 2 * math.pi)
        return rotary_dim * math.log(tokens_a_radian) / (2 * math.log(theta))

    low, high = dimension_turning(scaling.beta_fast), dimension_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    # Equal limits would divide by zero; transformers widens them by as much.
    width = high - low if high != low else 0.001
    ramp_R = ((torch.arange(len(wavelengths_R), dtype=torch.float32) - low) / width).clamp(0, 1)
    kept_R = 1 - ramp_R
    return (1.0 / (scaling.factor * wavelengths_R)) * (1 - kept_R) + (1.0 / wavelengths_R) * kept_R
