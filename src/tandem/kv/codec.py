"""The same KV values in another precision: between stored ones, and narrower ones for the way.

Plain numpy, so that the threads of the CPU kernels stay with the engine. A *row* is what one token
has in one layer, keys or values, and one head: `head_dim` values, here the last axis. As bytes:

- stored precisions: the values, little-endian;
- `int8`: the row's scale as a float32, then a signed code a value: `round(value / scale)` with
  `scale = largest absolute value of the row / 127`. The error is at most half a scale a value.
- `float8_e4m3`: a scale likewise, with 448 for 127, then 1 sign, 4 exponent and 3 mantissa bits a
  value, without infinities (OCP 8-bit floating point, 2023). The error is at most 1/16 of the
  value, or 2^-10 of a scale where that is more.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tandem.kv.layout import FLOAT_BYTES, SCALE_BYTES, SCALED, ScaledDtype, WireDtype, row_bytes

# What is between two precisions stays in the processor's cache.
PORTION_VALUES: Final = 1 << 18
LARGEST: Final[dict[str, float]] = {"int8": 127.0, "float8_e4m3": 448.0, "float16": 65504.0}
BYTES: Final = np.dtype("u1")

Values = NDArray[np.float32] | NDArray[np.float64]


def _head_dim(dtype: WireDtype, bytes: int) -> int:
    if dtype in SCALED:
        return bytes - SCALE_BYTES
    return bytes // FLOAT_BYTES[dtype]


def convert(
    rows: NDArray[np.uint8],
    source: WireDtype,
    target: WireDtype,
    *,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """[rows, row bytes of the one] -> [rows, row bytes of the other], in `out` if given, `rows`
    itself if there is nothing to do. To a narrower precision it rounds to nearest, ties to even;
    what float16 cannot hold becomes its largest value. Not a number stays that."""
    if source == target:
        return rows
    head_dim = _head_dim(source, rows.shape[1])
    if out is None:
        out = np.empty((len(rows), row_bytes(target, head_dim)), dtype=np.uint8)
    step = max(1, PORTION_VALUES // head_dim)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        out[part] = encode(decode(rows[part], source), target)
    return out


def decode(rows: NDArray[np.uint8], dtype: WireDtype) -> Values:
    """[..., row bytes] -> [..., head_dim], exactly."""
    match dtype:
        case "float64":
            return _viewed(rows, "<f8").astype(np.float64, copy=False)
        case "float32":
            return _viewed(rows, "<f4").astype(np.float32, copy=False)
        case "float16":
            return _viewed(rows, "<f2").astype(np.float32)
        case "bfloat16":
            return (_viewed(rows, "<u2").astype(np.uint32) << 16).view(np.float32)
        case "int8":
            codes = rows[..., SCALE_BYTES:].view(np.int8).astype(np.float32)
        case "float8_e4m3":
            codes = _E4M3[rows[..., SCALE_BYTES:]]
    scales = np.ascontiguousarray(rows[..., :SCALE_BYTES]).view(np.float32)
    # Slots that nobody has written yet may come along, with anything for a scale.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.multiply(codes, scales, dtype=np.float32)


def encode(values: Values, dtype: WireDtype) -> NDArray[np.uint8]:
    """[..., head_dim] -> [..., row bytes]."""
    match dtype:
        case "float64":
            return _as_bytes(values.astype("<f8", copy=False))
        case "float32":
            with np.errstate(over="ignore"):
                return _as_bytes(values.astype("<f4", copy=False))
        case "float16":
            largest = LARGEST[dtype]
            held = np.where(np.isfinite(values), np.clip(values, -largest, largest), values)
            return _as_bytes(held.astype("<f2"))
        case "bfloat16":
            with np.errstate(over="ignore"):
                return _as_bytes(_bfloat16_codes(values.astype(np.float32, copy=False)))
        case "int8" | "float8_e4m3":
            return _encode_scaled(values.astype(np.float32, copy=False), dtype)


def _encode_scaled(values: NDArray[np.float32], dtype: ScaledDtype) -> NDArray[np.uint8]:
    with np.errstate(invalid="ignore"):
        scales = np.abs(values).max(axis=-1, keepdims=True) / np.float32(LARGEST[dtype])
    # A row of zeros has zeros for codes; one that is not finite gives nothing finite back.
    usable = np.isfinite(scales) & (scales > 0)
    limit = np.float32(LARGEST[dtype])
    held = np.where(usable, values, np.zeros_like(values))
    quotients: NDArray[np.float32] = held / np.where(usable, scales, np.ones_like(scales))
    scaled = np.clip(quotients, -limit, limit)
    codes = np.rint(scaled).astype(np.int8).view(BYTES) if dtype == "int8" else _e4m3_codes(scaled)
    kept = np.where(np.isinf(scales), np.float32(np.nan), scales)
    return np.concatenate((_as_bytes(kept.astype("<f4")), codes), axis=-1)


def _bfloat16_codes(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    # Rounding could carry a payload into the sign.
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype("<u2")


def _e4m3_codes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Of finite values within +-448."""
    bits = values.view(np.uint32)
    signs = (bits >> np.uint32(24)).astype(BYTES) & BYTES.type(0x80)
    magnitudes = bits & np.uint32(0x7FFFFFFF)
    # Three bits of the mantissa stay; the exponent's bias goes from 127 to 7.
    odd = (magnitudes >> np.uint32(20)) & np.uint32(1)
    normal = ((magnitudes + np.uint32(0x7FFFF) + odd) >> np.uint32(20)) - np.uint32(120 << 3)
    # Below 2^-6 values are multiples of 2^-9, and the code counts them.
    subnormal = np.rint(np.abs(values) * np.float32(2**9))
    codes = np.where(np.abs(values) < np.float32(2**-6), subnormal, normal)
    return codes.astype(BYTES) | signs


def _e4m3_values() -> NDArray[np.float32]:
    """Of all 256 codes; the two with all seven bits set are not numbers."""
    codes = np.arange(256)
    exponents, mantissas = codes >> 3 & 15, (codes & 7) / 8
    normal, subnormal = (1 + mantissas) * 2.0 ** (exponents - 7), mantissas * 2.0**-6
    values = np.where(exponents == 0, subnormal, normal) * np.where(codes & 128, -1, 1)
    return np.where(codes & 127 == 127, np.nan, values).astype(np.float32)


def _viewed(rows: NDArray[np.uint8], dtype: str) -> NDArray[np.generic]:
    return np.ascontiguousarray(rows).view(dtype)


def _as_bytes(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(BYTES)


_E4M3: Final = _e4m3_values()
