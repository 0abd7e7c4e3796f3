"""Tiny quantised checkpoints of random words, and what they mean: decoded field by field, from the
definition of each format alone.

A format draws the tensors of a matrix and gives its values [N, C] in float64.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.random import Generator, default_rng
from safetensors.torch import load_file, save_file

from tests.models.tiny import VARIANTS, build

Tensors = dict[str, torch.Tensor]
Drawn = tuple[Tensors, np.ndarray]
Draw = Callable[[Generator, int, int], Drawn]

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Made:
    """A format as a checkpoint has it. `bits` are those of its codes, 0 where it has none that the
    kernels take; `symmetric`: zero is in the middle of them everywhere."""

    config: dict[str, object]
    draw: Draw
    bits: int = 0
    symmetric: bool = False


def fields_of(words: np.ndarray, bits: int) -> np.ndarray:
    """[..., places] of each word, from its lowest bits on."""
    wide = words.view(np.uint32).astype(np.int64)
    shifts = np.arange(32 // bits) * bits
    return (wide[..., None] >> shifts) & ((1 << bits) - 1)


def words(rng: Generator, *shape: int) -> np.ndarray:
    return rng.integers(-(2**31), 2**31, shape, dtype=np.int32)


def scales_of(rng: Generator, bits: int, inputs: int, *shape: int) -> torch.Tensor:
    """Such that products of random codes with normed inputs are about one."""
    step = 2.0 / (2**bits * inputs**0.5)
    return torch.from_numpy(rng.uniform(0.5, 1.5, shape) * step).to(torch.float16)


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def gptq(bits: int, size: int, *, plus: int = 1, symmetric: bool = False, order: str = "") -> Draw:
    def draw(rng: Generator, outputs: int, inputs: int) -> Drawn:
        width, each = size or inputs, 32 // bits
        groups = -(-inputs // width)
        qweight = words(rng, inputs // each, outputs)
        qzeros = words(rng, groups, outputs // each)
        if symmetric:
            stored = (1 << (bits - 1)) - plus
            qzeros[:] = (
                np.array(sum(stored << (bits * i) for i in range(each)))
                .astype(np.uint32)
                .view(np.int32)
            )
        scales = scales_of(rng, bits, inputs, groups, outputs)
        group_C = np.arange(inputs) // width
        if order == "random":
            group_C = rng.permutation(group_C)
        made = {"qweight": tensor(qweight), "qzeros": tensor(qzeros), "scales": scales}
        if order:
            made["g_idx"] = tensor(group_C.astype(np.int32))
        codes_CN = fields_of(qweight, bits).transpose(0, 2, 1).reshape(inputs, outputs)
        # One in each place, added with carry: as it was subtracted.
        ones = sum(plus << (bits * place) for place in range(each))
        whole = (qzeros.view(np.uint32).astype(np.int64) + ones).astype(np.uint32)
        zeros_GN = fields_of(whole, bits).reshape(groups, outputs)
        values_CN = scales.double().numpy()[group_C] * (codes_CN - zeros_GN[group_C])
        return made, values_CN.T

    return draw


def awq(size: int) -> Draw:
    """Eight outputs of a word lie in the order 0, 2, 4, 6, 1, 3, 5, 7."""
    place_of = [[0, 2, 4, 6, 1, 3, 5, 7].index(output) for output in range(8)]

    def draw(rng: Generator, outputs: int, inputs: int) -> Drawn:
        width = size or inputs
        groups = -(-inputs // width)
        qweight, qzeros = words(rng, inputs, outputs // 8), words(rng, groups, outputs // 8)
        scales = scales_of(rng, 4, inputs, groups, outputs)
        codes_CN = fields_of(qweight, 4)[..., place_of].reshape(inputs, outputs)
        zeros_GN = fields_of(qzeros, 4)[..., place_of].reshape(groups, outputs)
        group_C = np.arange(inputs) // width
        values_CN = scales.double().numpy()[group_C] * (codes_CN - zeros_GN[group_C])
        made = {"qweight": tensor(qweight), "qzeros": tensor(qzeros), "scales": scales}
        return made, values_CN.T

    return draw


def packed(
    bits: int,
    size: int,
    *,
    zeros: str = "",
    order: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> Draw:
    """compressed-tensors, pack-quantized: signed numbers plus 2 ** (bits - 1) in words."""

    def draw(rng: Generator, outputs: int, inputs: int) -> Drawn:
        width, each, middle = size or inputs, 32 // bits, 1 << (bits - 1)
        groups = -(-inputs // width)
        weight = words(rng, outputs, inputs // each)
        scales = scales_of(rng, bits, inputs, outputs, groups).to(dtype)
        made = {
            "weight_packed": tensor(weight),
            "weight_scale": scales,
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        zeros_NG = np.zeros((outputs, groups), np.int64)
        if zeros == "packed":
            stored = words(rng, outputs // each, groups)
            made["weight_zero_point"] = tensor(stored)
            zeros_NG = fields_of(stored, bits).transpose(0, 2, 1).reshape(outputs, groups) - middle
        elif zeros == "bytes":
            zeros_NG = rng.integers(-middle, middle, (outputs, groups))
            made["weight_zero_point"] = tensor(zeros_NG.astype(np.int8))
        group_C = np.arange(inputs) // width
        if order:
            group_C = rng.permutation(group_C)
            made["weight_g_idx"] = tensor(group_C.astype(np.int32))
        signed = fields_of(weight, bits).reshape(outputs, inputs) - middle
        return made, (signed - zeros_NG[:, group_C]) * scales.double().numpy()[:, group_C]

    return draw


def whole_bytes(*, per_tensor: bool = False, zeros: bool = False) -> Draw:
    """compressed-tensors, int-quantized: a signed byte each."""

    def draw(rng: Generator, outputs: int, inputs: int) -> Drawn:
        weight = rng.integers(-127, 128, (outputs, inputs), dtype=np.int8)
        shape = (1,) if per_tensor else (outputs, 1)
        scales = scales_of(rng, 8, inputs, *shape).to(torch.bfloat16)
        made = {"weight": tensor(weight), "weight_scale": scales}
        values = weight.astype(np.float64)
        if zeros:
            points = rng.integers(-20, 20, (outputs, 1))
            made["weight_zero_point"] = tensor(points.astype(np.int8))
            values -= points
        return made, values * scales.double().numpy()

    return draw


def e4m3(stored: np.ndarray) -> np.ndarray:
    """FP8 by its bits: a sign, four of an exponent with bias 7, three of a fraction."""
    sign = 1.0 - 2.0 * (stored >> 7)
    exponent, fraction = (stored >> 3) & 15, (stored & 7) / 8
    normal = (1 + fraction) * 2.0 ** (exponent - 7.0)
    return sign * np.where(exponent == 0, fraction * 2.0**-6, normal)


def drawn_e4m3(rng: Generator, *shape: int) -> np.ndarray:
    """Up to 1.75 in size, and no NaN."""
    return rng.integers(0, 64, shape) | (rng.integers(0, 2, shape) << 7)


def fp8(name: str, block: tuple[int, int] | None, *, dtype: torch.dtype = torch.float32) -> Draw:
    """With a scale a block; an empty block is a scale for all, None one a row."""

    def draw(rng: Generator, outputs: int, inputs: int) -> Drawn:
        stored = drawn_e4m3(rng, outputs, inputs)
        rows, columns = block if block is not None else (1, inputs)
        shape = (-(-outputs // rows), -(-inputs // columns)) if rows else (1,)
        scales = (scales_of(rng, 1, inputs, *shape).float() * 1.3).to(dtype)
        factors = scales.double().numpy()
        if rows:
            factors = factors[np.arange(outputs) // rows][:, np.arange(inputs) // columns]
        weight = tensor(stored.astype(np.uint8)).view(torch.float8_e4m3fn)
        made = {"weight": weight, name: scales, "input_scale": torch.ones(1)}
        return made, e4m3(stored) * factors

    return draw


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def fp4(size: int) -> Draw:
    """MXFP4 (32 inputs share a power of two) and NVFP4 (16 share a scale in E4M3, which is divided
    by one number for all); of a byte the lower half comes first."""

    def draw(rng: Generator, outputs: int, inputs: int) -> Drawn:
        stored = rng.integers(0, 256, (outputs, inputs // 2), dtype=np.uint8)
        values = FP4[np.stack((stored & 15, stored >> 4), -1).reshape(outputs, inputs)]
        made = {"weight_packed": tensor(stored)}
        if size == 32:
            exponents = rng.integers(121, 125, (outputs, inputs // 32), dtype=np.uint8)
            made["weight_scale"] = tensor(exponents)
            factors = 2.0 ** (exponents.astype(np.float64) - 127)
        else:
            scales = drawn_e4m3(rng, outputs, inputs // 16) & 127
            made["weight_scale"] = tensor(scales.astype(np.uint8)).view(torch.float8_e4m3fn)
            made["weight_global_scale"] = torch.tensor([13.0])
            factors = e4m3(scales) / 13.0
        return made, values * np.repeat(factors, size, 1)

    return draw


def ct(layout: str, weights: dict[str, object], **more: object) -> dict[str, object]:
    """The configuration of compressed-tensors with one group."""
    known = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": {**known, **weights}, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
        **more,
    }


def of_gptq(bits: int, size: int, **more: object) -> dict[str, object]:
    settings = {"desc_act": False, "sym": False, "checkpoint_format": "gptq", "lm_head": False}
    return {"quant_method": "gptq", "bits": bits, "group_size": size, **settings, **more}


AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
GROUPED = {"strategy": "group", "group_size": 32}
FLOAT8 = {"num_bits": 8, "type": "float"}
PACKED = "pack-quantized"
FORMATS = {
    "gptq": Made(of_gptq(4, 32), gptq(4, 32), 4),
    "gptq symmetric": Made(
        of_gptq(4, 32, sym=True), gptq(4, 32, symmetric=True), 4, symmetric=True
    ),
    "gptq 8 bits": Made(of_gptq(8, 32), gptq(8, 32), 8),
    "gptq in rows": Made(of_gptq(4, -1), gptq(4, 0), 4),
    "gptq_v2": Made(of_gptq(4, 32, checkpoint_format="gptq_v2"), gptq(4, 32, plus=0), 4),
    "gptq with a trivial order": Made(of_gptq(4, 32), gptq(4, 32, order="as it is"), 4),
    "gptq in another order": Made(of_gptq(4, 32, desc_act=True), gptq(4, 32, order="random")),
    "gptq dynamic": Made(of_gptq(4, 64, dynamic={"+:.*": {"bits": 8}}), gptq(8, 16), 8),
    "awq": Made({**AWQ, "group_size": 32}, awq(32), 4),
    "awq in rows": Made({**AWQ, "group_size": -1}, awq(0), 4),
    "packed": Made(ct(PACKED, GROUPED), packed(4, 32), 4, symmetric=True),
    "packed in rows": Made(ct(PACKED, {}), packed(4, 0), 4, symmetric=True),
    "packed 8 bits": Made(ct(PACKED, {**GROUPED, "num_bits": 8}), packed(8, 32), 8, symmetric=True),
    "packed with zero points": Made(
        ct(PACKED, {**GROUPED, "symmetric": False}), packed(4, 32, zeros="packed"), 4
    ),
    "packed with zero points in bytes": Made(
        ct(PACKED, {**GROUPED, "symmetric": False}), packed(4, 32, zeros="bytes"), 4
    ),
    "packed in another order": Made(
        ct(PACKED, {**GROUPED, "actorder": "group"}), packed(4, 32, order=True)
    ),
    "int8": Made(ct("int-quantized", {"num_bits": 8}), whole_bytes(), 8, symmetric=True),
    "int8 with one scale": Made(
        ct("int-quantized", {"num_bits": 8, "strategy": "tensor"}),
        whole_bytes(per_tensor=True),
        8,
        symmetric=True,
    ),
    "int8 with zero points": Made(
        ct("naive-quantized", {"num_bits": 8, "symmetric": False}), whole_bytes(zeros=True), 8
    ),
    "float8": Made(ct("float-quantized", FLOAT8), fp8("weight_scale", None, dtype=torch.bfloat16)),
    "float8 with one scale": Made(
        ct("float-quantized", {**FLOAT8, "strategy": "tensor"}), fp8("weight_scale", (0, 0))
    ),
    "float8 in blocks": Made(
        ct("float-quantized", {**FLOAT8, "strategy": "block", "block_structure": [24, 40]}),
        fp8("weight_scale", (24, 40)),
    ),
    "mxfp4": Made(
        ct("mxfp4-pack-quantized", {**GROUPED, "type": "float"}), fp4(32), 8, symmetric=True
    ),
    "nvfp4": Made(
        ct("nvfp4-pack-quantized", {"type": "float", "strategy": "tensor_group", "group_size": 16}),
        fp4(16),
        8,
        symmetric=True,
    ),
    "fp8 in blocks": Made(
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [24, 40]},
        fp8("weight_scale_inv", (24, 40)),
    ),
    "fp8 with one scale": Made(
        {"quant_method": "fp8", "activation_scheme": "static"}, fp8("weight_scale", (0, 0))
    ),
    "fbgemm_fp8": Made({"quant_method": "fbgemm_fp8"}, fp8("weight_scale", None)),
}


@dataclass(frozen=True)
class Written:
    """A quantised checkpoint, and one of the same values in float32; `values` by name."""

    directory: Path
    decoded: Path
    values: dict[str, torch.Tensor]


@cache
def base(variant: str) -> tuple[str, Tensors]:
    """The config.json and the tensors of a plain checkpoint, in float16."""
    with TemporaryDirectory() as folder:
        build(VARIANTS[variant], Path(folder) / variant)
        config = (Path(folder) / variant / "config.json").read_text()
        tensors = load_file(Path(folder) / variant / "model.safetensors")
        return config, {name: each.to(torch.float16) for name, each in tensors.items()}


def write(
    folder: Path, made: Made, variant: str = "llama3", skipped: tuple[str, ...] = ()
) -> Written:
    """All linears but those whose names end with one that is skipped."""
    directory, decoded = folder / "quantised", folder / "decoded"
    config, plain = base(variant)
    tensors, rng = dict(plain), default_rng(11)
    floats = {name: each.to(torch.float32) for name, each in tensors.items()}
    values = {}
    for name in sorted(tensors):
        module = name.removesuffix(".weight")
        if (
            not module.endswith(LINEARS)
            or module.endswith(skipped or ("no such",))
            or name == module
        ):
            continue
        outputs, inputs = tensors.pop(name).shape
        drawn, found = made.draw(rng, outputs, inputs)
        tensors |= {f"{module}.{ending}": each for ending, each in drawn.items()}
        values[name] = tensor(found.astype(np.float32))
    for path in (directory, decoded):
        path.mkdir(parents=True)
        (path / "config.json").write_text(config)
    save_file(tensors, directory / "model.safetensors")
    save_file({**floats, **values}, decoded / "model.safetensors")
    configure(directory, quantization_config=made.config, dtype="float16")
    return Written(directory, decoded, values)


def configure(directory: Path, **changes: object) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
