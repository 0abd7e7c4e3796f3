"""The block types of GGUF as codes with scales and offsets (`kernels.coded.CodedWeight`).

Layouts as ggml has them (https://github.com/ggml-org/ggml, `ggml-common.h`), written down anew.
Scales are float16 in the file; of types with two levels they are products, in float32.

Axes: N rows, K blocks of a row, B bytes of a block, G groups of a row, C inputs.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.kernels.coded import Bits, CodedWeight
from tandem.models.formats.gguf import CODE_FORMS

# Inputs that share a scale: of the simple types, and of the parts of a block of 256.
GROUP, FINE_GROUP = 32, 16
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Decoded(NamedTuple):
    """Of some rows: codes [N, K, inputs of a block], scales and offsets [N, K, groups of one]."""

    codes: Tensor
    scale: Tensor
    offset: Tensor | None
    zero: int
    bits: Bits
    size: int


def floats_of(name: str, blocks_NKB: Tensor) -> Tensor:
    """The numbers [N, K] of a type that has no codes."""
    return blocks_NKB.view(FLOATS[name]).squeeze(-1)


def codes_of(name: str, blocks_NKB: Tensor) -> CodedWeight:
    """The weights of all other types."""
    decoded = _DECODERS[name](blocks_NKB)
    scale, offset = decoded.scale.flatten(1), decoded.offset
    return CodedWeight(
        decoded.codes.flatten(1),
        scale,
        None if offset is None else offset.flatten(1),
        decoded.zero,
        decoded.bits,
        decoded.size,
        CODE_FORMS[name].levels,
    )


def _q8_0(blocks_NKB: Tensor) -> Decoded:
    # Signed bytes, moved up to where codes begin at 0.
    return Decoded(blocks_NKB[..., 2:] ^ 0x80, _half(blocks_NKB, 0), None, 128, 8, GROUP)


def _q4_0(blocks_NKB: Tensor) -> Decoded:
    return Decoded(_nibbles(blocks_NKB[..., 2:]), _half(blocks_NKB, 0), None, 8, 4, GROUP)


def _q4_1(blocks_NKB: Tensor) -> Decoded:
    scale, offset = _half(blocks_NKB, 0), _half(blocks_NKB, 2)
    return Decoded(_nibbles(blocks_NKB[..., 4:]), scale, offset, 0, 4, GROUP)


def _q5_0(blocks_NKB: Tensor) -> Decoded:
    codes = _nibbles(blocks_NKB[..., 6:]) | (_bits(blocks_NKB[..., 2:6]) << 4)
    return Decoded(codes, _half(blocks_NKB, 0), None, 16, 8, GROUP)


def _q5_1(blocks_NKB: Tensor) -> Decoded:
    codes = _nibbles(blocks_NKB[..., 8:]) | (_bits(blocks_NKB[..., 4:8]) << 4)
    return Decoded(codes, _half(blocks_NKB, 0), _half(blocks_NKB, 2), 0, 8, GROUP)


def _q4_k(blocks_NKB: Tensor) -> Decoded:
    scale, offset = _two_levels(blocks_NKB)
    return Decoded(_nibbles_of_quarters(blocks_NKB[..., 16:]), scale, offset, 0, 4, GROUP)


def _q5_k(blocks_NKB: Tensor) -> Decoded:
    scale, offset = _two_levels(blocks_NKB)
    high = blocks_NKB[..., 16:48]
    # Bit g of a byte belongs to group g.
    fifth = torch.stack([(high >> group) & 1 for group in range(8)], dim=-2).flatten(-2)
    codes = _nibbles_of_quarters(blocks_NKB[..., 48:]) | (fifth << 4)
    return Decoded(codes, scale, offset, 0, 8, GROUP)


def _q6_k(blocks_NKB: Tensor) -> Decoded:
    # Two halves of 128: 64 bytes of low nibbles and 32 bytes of four pairs of high bits each.
    rows, blocks, _ = blocks_NKB.shape
    low = blocks_NKB[..., :128].reshape(rows, blocks, 2, 64)
    high = blocks_NKB[..., 128:192].reshape(rows, blocks, 2, 32)
    nibbles = torch.cat([low & 0x0F, low >> 4], dim=-1)
    pairs = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=-1)
    codes = (nibbles | (pairs << 4)).flatten(-2)
    fine = blocks_NKB[..., 192:208].view(torch.int8).to(torch.float32)
    return Decoded(codes, _half(blocks_NKB, 208) * fine, None, 32, 8, FINE_GROUP)


_DECODERS: dict[str, Callable[[Tensor], Decoded]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def _half(blocks_NKB: Tensor, at: int) -> Tensor:
    """The float16 at a byte of each block, float32 [N, K, 1]."""
    return blocks_NKB[..., at : at + 2].contiguous().view(torch.float16).to(torch.float32)


def _nibbles(bytes_NKB: Tensor) -> Tensor:
    """The low halves of some bytes, then their high halves."""
    return torch.cat([bytes_NKB & 0x0F, bytes_NKB >> 4], dim=-1)


def _nibbles_of_quarters(bytes_NKB: Tensor) -> Tensor:
    """The same of each 32 of 128 bytes."""
    rows, blocks, _ = bytes_NKB.shape
    return _nibbles(bytes_NKB.reshape(rows, blocks, 4, 32)).flatten(-2)


def _bits(bytes_NKB: Tensor) -> Tensor:
    """Each bit, from the lowest of the first byte on."""
    return torch.stack([(bytes_NKB >> bit) & 1 for bit in range(8)], dim=-1).flatten(-2)


def _two_levels(blocks_NKB: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and offset [N, K, 8] of the eight groups of a block: two float16, each times six bits a
    group. The low six bits of eight bytes are groups 0 to 3; nibbles of the last four bytes with
    the high bits of those before are groups 4 to 7."""
    packed = blocks_NKB[..., 4:16]
    scales, minima, nibbles = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    steps = torch.cat([scales & 63, (nibbles & 0x0F) | (scales >> 6 << 4)], dim=-1)
    depths = torch.cat([minima & 63, (nibbles >> 4) | (minima >> 6 << 4)], dim=-1)
    return _half(blocks_NKB, 0) * steps, -(_half(blocks_NKB, 2) * depths)
