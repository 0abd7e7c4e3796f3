"""A decoder's layers in one call: of a step of one token, which takes tens of milliseconds, nine
calls a layer from Python are a tenth or more, and between them threads that wait for work fall
asleep. C++ calls the same operations in the same order, so no bit changes.

Axes: T packed tokens, C hidden, W wanted tokens, B blocks, K kv heads, S slots a block, D head dim.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem.facts.model import ModelSpec
from tandem.kernels.activation import NUMBERS
from tandem.kernels.arguments import DTYPE_CODES, require_whole
from tandem.kernels.attention import POOL_DTYPES, AttentionBatch, tile_tokens
from tandem.kernels.kv_rows import row_elements
from tandem.kernels.native import (
    Integer,
    KernelArgumentError,
    NativeFunction,
    NativeLibrary,
    Pointer,
)
from tandem.kernels.packed import PackedLinear
from tandem.kernels.rotary import RotaryTable, TokenPlaces


class LayerParameters(Protocol):
    """What one layer is made of. Norms are [C], those of heads [D]."""

    @property
    def attention_norm(self) -> Tensor: ...
    @property
    def qkv(self) -> PackedLinear: ...
    @property
    def query_norm(self) -> Tensor | None: ...
    @property
    def key_norm(self) -> Tensor | None: ...
    @property
    def attention_output(self) -> PackedLinear: ...
    @property
    def feed_forward_norm(self) -> Tensor: ...
    @property
    def gate_up(self) -> PackedLinear: ...
    @property
    def down(self) -> PackedLinear: ...


@dataclass(frozen=True, slots=True)
class LayerStep:
    """The tokens of a step, and of each layer its part of the pool, kv_B2KSD, all of one form.
    `wanted` (int64 [W]) are the tokens that leave the last layer; None means all."""

    places: TokenPlaces
    attention: AttentionBatch
    kv: Sequence[Tensor]
    wanted: Tensor | None


class RunLayers(Protocol):
    def __call__(self, residual_TC: Tensor, step: LayerStep) -> Tensor:
        """hidden_WC before the final norm; writes the KV of all tokens, and over the residual."""
        ...


class JoinLayers(Protocol):
    def __call__(
        self, spec: ModelSpec, layers: Sequence[LayerParameters], table: RotaryTable | None
    ) -> RunLayers: ...


class _Weight(ctypes.Structure):
    _fields_ = (
        ("values", Pointer),
        ("storage", Integer),
        ("narrow", Integer),
        ("bits", Integer),
        ("group", Integer),
        ("zero", Integer),
        ("scale", Pointer),
        ("offset", Pointer),
        ("column_scale", Pointer),
        ("bias", Pointer),
        ("in_features", Integer),
        ("out_features", Integer),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", Pointer),
        ("query_norm", Pointer),
        ("key_norm", Pointer),
        ("feed_forward_norm", Pointer),
        ("window", Integer),
        ("qkv", _Weight),
        ("attention_output", _Weight),
        ("gate_up", _Weight),
        ("down", _Weight),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        ("hidden", Integer),
        ("heads", Integer),
        ("kv_heads", Integer),
        ("head_dim", Integer),
        ("inner", Integer),
        ("activation", Integer),
        ("half", Integer),
        ("cos", Pointer),
        ("sin", Pointer),
        ("norm_eps", ctypes.c_double),
        ("norm_offset", ctypes.c_double),
        ("attention_scale", ctypes.c_double),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("tokens", Integer),
        ("positions", Pointer),
        ("slots", Pointer),
        ("query_start", Pointer),
        ("context", Pointer),
        ("table", Pointer),
        ("table_stride", Integer),
        ("sequences", Integer),
        ("parents", Pointer),
        ("wanted", Pointer),
        ("wanted_tokens", Integer),
        ("kv", Pointer),
        ("kv_dtype", Integer),
        ("kv_strides", Integer * 4),
        ("block_size", Integer),
        ("tile_tokens", Integer),
        ("threads", Integer),
    )


class NativeJoinLayers:
    """float32 activations. `narrow`: which of float and coded weights are multiplied with in what
    they are stored in."""

    def __init__(self, library: NativeLibrary, *, bf16: bool, coded: bool) -> None:
        for name, structure in (("layer", _Layer), ("model", _Model), ("step", _Step)):
            assert library.number(f"tandem_{name}_bytes") == ctypes.sizeof(structure)
        self._bf16, self._coded = bf16, coded
        self._run = library.function("tandem_layers", *(Pointer,) * 2, Integer, *(Pointer,) * 6)

    def __call__(
        self, spec: ModelSpec, layers: Sequence[LayerParameters], table: RotaryTable | None
    ) -> "NativeLayers":
        held = (_Layer * len(layers))(
            *(
                _Layer(
                    _whole("attention_norm", layer.attention_norm),
                    _whole("query_norm", layer.query_norm),
                    _whole("key_norm", layer.key_norm),
                    _whole("feed_forward_norm", layer.feed_forward_norm),
                    spec.attention.window_tokens[index] or 0,
                    self._weight(layer.qkv),
                    self._weight(layer.attention_output),
                    self._weight(layer.gate_up),
                    self._weight(layer.down),
                )
                for index, layer in enumerate(layers)
            )
        )
        attention = spec.attention
        model = _Model(
            spec.hidden_features,
            attention.heads,
            attention.kv_heads,
            attention.head_dim,
            spec.feed_forward_features,
            NUMBERS[spec.activation],
            0 if table is None else table.cos.shape[1],
            None if table is None else _whole("table.cos", table.cos),
            None if table is None else _whole("table.sin", table.sin),
            spec.norm.eps,
            spec.norm.offset,
            attention.scale,
        )
        return NativeLayers(self._run, spec, model, held, (tuple(layers), table))

    def _weight(self, packed: PackedLinear) -> _Weight:
        if packed.layout != "panels":
            raise KernelArgumentError("packed.layout", packed.layout, "panels")
        weight = _Weight(
            values=packed.weight.data_ptr(),
            column_scale=_address(packed.scale),
            bias=_address(packed.bias),
            in_features=packed.in_features,
            out_features=packed.out_features,
        )
        groups, dtype = packed.groups, packed.weight.dtype
        if groups is None:
            weight.storage = DTYPE_CODES[dtype]
            weight.narrow = self._bf16 and dtype is torch.bfloat16
        else:
            weight.narrow, weight.bits = self._coded, groups.bits
            weight.group, weight.zero = groups.size, groups.zero
            weight.scale, weight.offset = _address(groups.scale), _address(groups.offset)
        return weight


class NativeLayers:
    """Holds what the addresses lead to."""

    def __init__(
        self,
        run: NativeFunction,
        spec: ModelSpec,
        model: _Model,
        layers: "ctypes.Array[_Layer]",
        held: object,
    ) -> None:
        self._run, self._spec, self._model, self._layers = run, spec, model, layers
        self._held = held

    def __call__(self, residual_TC: Tensor, step: LayerStep) -> Tensor:
        spec, tokens, wanted = self._spec, residual_TC.shape[0], step.wanted
        require_whole("residual_TC", residual_TC, torch.float32)
        # Names keep what C++ is given the addresses of.
        pool = self._pool_addresses(step.kv)
        arguments = self._step_arguments(step, tokens, pool)
        if wanted is not None:
            require_whole("wanted", wanted, torch.int64)
        out_WC = torch.empty(tokens if wanted is None else len(wanted), spec.hidden_features)
        rows = max(tokens, len(out_WC))
        queries, keys = spec.attention.query_features, spec.attention.kv_features
        wide = max(3 * queries + 3 * keys, 3 * spec.feed_forward_features)
        update_RC = torch.empty(rows, spec.hidden_features)
        x_RC = torch.empty(rows, spec.hidden_features)
        wide_RF = torch.empty(rows, wide)
        self._run(
            ctypes.addressof(self._model),
            ctypes.addressof(self._layers),
            len(self._layers),
            ctypes.addressof(arguments),
            residual_TC.data_ptr(),
            update_RC.data_ptr(),
            x_RC.data_ptr(),
            wide_RF.data_ptr(),
            out_WC.data_ptr(),
        )
        return out_WC

    def _pool_addresses(self, kv: Sequence[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
        attention, first = self._spec.attention, kv[0]
        elements = row_elements(first.dtype, attention.head_dim)
        shape = tuple(first.shape)
        if len(shape) != 5 or (shape[1], shape[2], shape[4]) != (2, attention.kv_heads, elements):
            expected = f"[B, 2, {attention.kv_heads}, S, {elements}]"
            raise KernelArgumentError("kv_B2KSD", shape, expected)
        if first.dtype not in POOL_DTYPES:
            raise KernelArgumentError("kv_B2KSD", first.dtype, f"one of {POOL_DTYPES}")
        for each in kv:
            if (each.dtype, each.stride()) != (first.dtype, first.stride()):
                raise KernelArgumentError("kv", each.dtype, "layers of one form")
        if len(kv) != len(self._layers):
            raise KernelArgumentError("kv", len(kv), f"{len(self._layers)} layers")
        return (Pointer * len(kv))(*(each.data_ptr() for each in kv))

    def _step_arguments(
        self, step: LayerStep, tokens: int, pool: "ctypes.Array[ctypes.c_void_p]"
    ) -> _Step:
        places, attention, first = step.places, step.attention, step.kv[0]
        if places.positions.shape[0] != tokens or places.slots.shape[0] != tokens:
            found = (places.positions.shape[0], places.slots.shape[0])
            raise KernelArgumentError("places", found, f"{tokens} positions and slots")
        return _Step(
            tokens,
            places.positions.data_ptr(),
            places.slots.data_ptr(),
            attention.query_start.data_ptr(),
            attention.context_lengths.data_ptr(),
            attention.block_table.data_ptr(),
            attention.block_table.stride(0),
            attention.sequences,
            _address(attention.parents),
            _address(step.wanted),
            -1 if step.wanted is None else len(step.wanted),
            ctypes.addressof(pool),
            DTYPE_CODES[first.dtype],
            (Integer * 4)(*first.stride()[:4]),
            first.shape[3],
            tile_tokens(self._spec.attention.heads, self._spec.attention.kv_heads),
            torch.get_num_threads(),
        )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _whole(name: str, tensor: Tensor | None) -> int | None:
    if tensor is not None:
        require_whole(name, tensor, torch.float32)
    return _address(tensor)
