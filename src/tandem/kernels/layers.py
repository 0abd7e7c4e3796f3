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
from tandem.kernels.arguments import DTYPE_CODES, address, address_of_floats, require_whole
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
from tandem.kernels.weight_arguments import NarrowProducts, WeightArguments


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


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", Pointer),
        ("query_norm", Pointer),
        ("key_norm", Pointer),
        ("feed_forward_norm", Pointer),
        ("window", Integer),
        ("qkv", WeightArguments),
        ("attention_output", WeightArguments),
        ("gate_up", WeightArguments),
        ("down", WeightArguments),
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
        ("narrow", Integer),
        ("norm_eps", ctypes.c_double),
        ("norm_offset", ctypes.c_double),
        ("attention_scale", ctypes.c_double),
    )


class PoolArguments(ctypes.Structure):
    """KV of all layers, as layers.h has it."""

    _fields_ = (
        # Keeps the addresses that it is given.
        ("layers", ctypes.POINTER(Pointer)),
        ("dtype", Integer),
        ("strides", Integer * 4),
        ("block_size", Integer),
    )


class StepArguments(ctypes.Structure):
    """The tokens of a step, and the pool, as layers.h has them."""

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
        ("pool", PoolArguments),
        ("tile_tokens", Integer),
        ("threads", Integer),
    )


class NativeJoinLayers:
    """float32 activations, and products as `narrow` says."""

    def __init__(self, library: NativeLibrary, narrow: NarrowProducts) -> None:
        for name, structure in (("layer", _Layer), ("model", _Model), ("step", StepArguments)):
            assert library.number(f"tandem_{name}_bytes") == ctypes.sizeof(structure)
        self._narrow, self._weight = narrow, narrow.arguments
        self._wide_floats = library.function("tandem_wide_floats", Pointer, Integer, Pointer)
        self._run = library.function("tandem_layers", *(Pointer,) * 2, Integer, *(Pointer,) * 6)

    def __call__(
        self, spec: ModelSpec, layers: Sequence[LayerParameters], table: RotaryTable | None
    ) -> "NativeLayers":
        held = (_Layer * len(layers))(
            *(
                _Layer(
                    address_of_floats("attention_norm", layer.attention_norm),
                    address_of_floats("query_norm", layer.query_norm),
                    address_of_floats("key_norm", layer.key_norm),
                    address_of_floats("feed_forward_norm", layer.feed_forward_norm),
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
            None if table is None else address_of_floats("table.cos", table.cos),
            None if table is None else address_of_floats("table.sin", table.sin),
            self._narrow.bf16,
            spec.norm.eps,
            spec.norm.offset,
            attention.scale,
        )
        calls = self._run, self._wide_floats
        return NativeLayers(calls, spec, model, held, (tuple(layers), table))


class NativeLayers:
    """Holds what the addresses lead to."""

    def __init__(
        self,
        calls: tuple[NativeFunction, NativeFunction],
        spec: ModelSpec,
        model: _Model,
        layers: "ctypes.Array[_Layer]",
        held: object,
    ) -> None:
        self._run, self._wide_floats = calls
        self._spec = spec
        self.model, self.layers = model, layers
        self._held = held

    @property
    def tile_tokens(self) -> int:
        return tile_tokens(self._spec.attention.heads, self._spec.attention.kv_heads)

    def wide_floats(self, rows: int) -> int:
        """What lies between the linears of so many."""
        found = Integer()
        self._wide_floats(ctypes.addressof(self.model), rows, ctypes.addressof(found))
        return int(found.value)

    def __call__(self, residual_TC: Tensor, step: LayerStep) -> Tensor:
        hidden, tokens, wanted = self._spec.hidden_features, residual_TC.shape[0], step.wanted
        require_whole("residual_TC", residual_TC, torch.float32)
        arguments = self._step_arguments(step, tokens)
        if wanted is not None:
            require_whole("wanted", wanted, torch.int64)
        out_WC = torch.empty(tokens if wanted is None else len(wanted), hidden)
        rows = max(tokens, len(out_WC))
        update_RC, x_RC = torch.empty(rows, hidden), torch.empty(rows, hidden)
        wide = torch.empty(self.wide_floats(rows))
        self._run(
            ctypes.addressof(self.model),
            ctypes.addressof(self.layers),
            len(self.layers),
            ctypes.addressof(arguments),
            residual_TC.data_ptr(),
            update_RC.data_ptr(),
            x_RC.data_ptr(),
            wide.data_ptr(),
            out_WC.data_ptr(),
        )
        return out_WC

    def pool(self, kv: Sequence[Tensor]) -> PoolArguments:
        """Where these layers lie. Raises `KernelArgumentError` for those of another model."""
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
        if len(kv) != len(self.layers):
            raise KernelArgumentError("kv", len(kv), f"{len(self.layers)} layers")
        return PoolArguments(
            (Pointer * len(kv))(*(each.data_ptr() for each in kv)),
            DTYPE_CODES[first.dtype],
            (Integer * 4)(*first.stride()[:4]),
            shape[3],
        )

    def _step_arguments(self, step: LayerStep, tokens: int) -> StepArguments:
        places, attention = step.places, step.attention
        if places.positions.shape[0] != tokens or places.slots.shape[0] != tokens:
            found = (places.positions.shape[0], places.slots.shape[0])
            raise KernelArgumentError("places", found, f"{tokens} positions and slots")
        return StepArguments(
            tokens,
            places.positions.data_ptr(),
            places.slots.data_ptr(),
            attention.query_start.data_ptr(),
            attention.context_lengths.data_ptr(),
            attention.block_table.data_ptr(),
            attention.block_table.stride(0),
            attention.sequences,
            address(attention.parents),
            address(step.wanted),
            -1 if step.wanted is None else len(step.wanted),
            self.pool(step.kv),
            self.tile_tokens,
            torch.get_num_threads(),
        )
