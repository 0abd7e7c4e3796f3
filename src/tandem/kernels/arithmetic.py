"""Which numbers a face of the kernels computes, in one line of text: workers whose lines differ
never take each other's KV, and KV that was kept under another line is never read.

The native face is built on the machine where it runs, and other registers or another compiler give
other last bits; so it is asked: its operations run once over fixed numbers, and a digest of what
they give stands in the line. The torch face does not give the same bits in every company, so asking
it would prove nothing: its line names torch and the processor.
"""

from hashlib import blake2b
from itertools import product
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from tandem.facts.model import Activation, NormSpec, RopeSpec
from tandem.kernels.attention import AttentionBatch
from tandem.kernels.coded import Bits, CodedWeight
from tandem.kernels.faces import Kernels
from tandem.kernels.kv_rows import row_elements
from tandem.kernels.lora import LowRankPart, adapter_rows
from tandem.kernels.packed import Storage
from tandem.kernels.rotary import QueryKeyValue, RotaryTable, TokenPlaces, rotary_table

# Raise this whenever the KV of any model could come out with other bits than before: a change to
# what a kernel computes, or in which order it adds; to what decoder, rotary table, quantisation or
# dummy weights compute; to the bytes of a KV block. Speed, threads and batching never change a bit
# and need no new number. `tests/kernels/test_arithmetic.py` pins what the kernels gave under this
# number on the processors that it knows.
ARITHMETIC_VERSION = 1

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
STORAGES: tuple[Storage, ...] = ("float32", "bfloat16", "float16", "int8", "int4")
TOKENS, HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 19, 4, 2, 24, 8
FEATURES, OUTPUTS, RANK = 88, 70, 20
ROTARY_DIM, ROTARY_POSITIONS = 128, 1000
CODE_BITS: tuple[Bits, ...] = get_args(Bits)
GROUP = 32


def arithmetic_of(
    kernels: Kernels,
    device: torch.device,
    compute: torch.dtype,
    *,
    codes: bool = False,
    kv_codes: bool = False,
) -> str:
    """What the numbers of a model depend on beside its content: the line for these kernels on this
    device, with activations in `compute`. With `codes`, of a model whose checkpoint gives weights
    as codes; with `kv_codes`, of one whose KV is held as codes."""
    precision = str(compute).removeprefix("torch.")
    # The rotary table, and whatever has no kernel, is torch's in every face.
    words = [f"{kernels.name}/{ARITHMETIC_VERSION}", precision, f"torch {torch.__version__}"]
    if kernels.name == "native":
        # Torch takes other functions on other processors, for which kernels may be the same.
        words += [fingerprint(kernels), f"rotary {_digest(_rotary())}"]
        words += [f"codes {_digest(_coded(kernels))}"] if codes else []
        words += [f"KV codes {_digest(_attended(kernels, torch.int8))}"] if kv_codes else []
    elif device.type == "cpu":
        words.append(f"cpu {torch.backends.cpu.get_cpu_capability()}")
    else:
        words.append(f"{device.type} {torch.cuda.get_device_name(device)}")
    return ", ".join(words)


def fingerprint(kernels: Kernels) -> str:
    """A digest of what each operation gives for numbers that are always the same; float32, on the
    CPU."""
    return _digest(_results(kernels))


def _rotary() -> list[Tensor]:
    table = rotary_table(RopeSpec(), ROTARY_DIM, ROTARY_POSITIONS, torch.device("cpu"))
    return [table.cos, table.sin]


def _digest(results: list[Tensor]) -> str:
    digest = blake2b(digest_size=12)
    for result in results:
        digest.update(result.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _coded(kernels: Kernels) -> list[Tensor]:
    """Products with codes of both widths, in groups and in whole rows, with and without offsets."""
    x_TC, results = _numbers(TOKENS, FEATURES), []
    for bits, size, has_offset in product(CODE_BITS, (GROUP, FEATURES), (False, True)):
        counted = (_numbers(OUTPUTS, FEATURES) + 1.0) * 2 ** (bits - 1)
        scale_NG = _numbers(OUTPUTS, -(-FEATURES // size)) + 1.5
        offset_NG = _numbers(*scale_NG.shape) if has_offset else None
        coded = CodedWeight(
            counted.to(torch.uint8), scale_NG, offset_NG, 1 << (bits - 1), bits, size
        )
        results.append(kernels.linear(x_TC, kernels.pack_coded(coded, None)))
    return results


def _results(kernels: Kernels) -> list[Tensor]:
    x_TC, weight_NC = _numbers(TOKENS, FEATURES), _numbers(OUTPUTS, FEATURES)
    norm_C, bias_N = _numbers(FEATURES) + 1.5, _numbers(OUTPUTS)
    results = [
        kernels.linear(x_TC, kernels.pack(weight_NC, bias_N, storage)) for storage in STORAGES
    ]
    results.append(kernels.rms_norm(x_TC, norm_C, NormSpec()))
    results += kernels.add_rms_norm(x_TC, 3 * _numbers(TOKENS, FEATURES), norm_C, NormSpec())
    results += (kernels.gated_activation(8 * x_TC, activation) for activation in ACTIVATIONS)
    return [*results, _adapted(kernels, x_TC), *_attended(kernels, torch.float32)]


def _adapted(kernels: Kernels, x_TC: Tensor) -> Tensor:
    """Rows of two adapters of unlike storage and rank."""
    adapters = []
    for rank, dtype in ((5, torch.float32), (RANK, torch.bfloat16)):
        down_RC, up_NR = _numbers(rank, FEATURES), _numbers(OUTPUTS, rank)
        part = LowRankPart(down_RC.to(dtype), up_NR.to(dtype), 0.7)
        adapters.append(kernels.pack_low_rank([part], OUTPUTS))
    stack = kernels.join_low_rank(adapters)
    assert stack is not None
    y_TN = 2 * _numbers(TOKENS, OUTPUTS)
    rows = adapter_rows(np.arange(TOKENS, dtype=np.int32) % len(adapters), len(adapters))
    kernels.add_low_rank(y_TN, x_TC, stack, rows)
    return y_TN


def _attended(kernels: Kernels, stored: torch.dtype) -> list[Tensor]:
    """One sequence of `TOKENS`: its KV as stored, then attention of all its tokens."""
    heads = QueryKeyValue(
        _numbers(TOKENS, HEADS, HEAD_DIM),
        _numbers(TOKENS, KV_HEADS, HEAD_DIM) * 1.25,
        _numbers(TOKENS, KV_HEADS, HEAD_DIM) * 0.75,
    )
    blocks = -(-TOKENS // BLOCK_SIZE)
    row = row_elements(stored, HEAD_DIM)
    kv_B2KSD = torch.zeros(blocks, 2, KV_HEADS, BLOCK_SIZE, row, dtype=stored)
    cos_PR = _numbers(TOKENS, HEAD_DIM // 2)
    places = TokenPlaces(torch.arange(TOKENS), torch.arange(TOKENS))
    kernels.rotate_and_store(heads, kv_B2KSD, RotaryTable(cos_PR, 1 - cos_PR * cos_PR), places)
    batch = AttentionBatch(
        torch.tensor([0, TOKENS], dtype=torch.int32),
        torch.tensor([TOKENS], dtype=torch.int32),
        torch.arange(blocks, dtype=torch.int32)[None],
    )
    out_THD = kernels.paged_attention(heads.q, kv_B2KSD, batch, scale=HEAD_DIM**-0.5)
    return [kv_B2KSD, out_THD]


def _numbers(*shape: int) -> Tensor:
    """Numbers between -1 and 1 with long mantissas, the same on every machine: no generator is
    asked, whose next version might draw others."""
    count = torch.Size(shape).numel()
    # A multiplicative hash; the product of two such numbers fits 64 bits.
    bits = (torch.arange(1, count + 1) * 2_654_435_761) % (1 << 24)
    return (bits.to(torch.float32) * 2.0**-23 - 1.0).reshape(shape)
