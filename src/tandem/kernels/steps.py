"""A whole step in one call, from the slots' state to drawn tokens: of a small model, or of many
sequences, what lies between the operations takes as long in Python as they do. C++ calls the same
operations in the same order, so no bit changes.

It is for rows that all draw, without adapters; their drafts are chains. Where more than
temperature, top_k, top_p and min_p says what is drawn, it ends with logits.
Axes: S slots, X tokens of a sequence, B blocks of one, N rows of a step, R draws, C hidden,
V vocabulary.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.facts.model import ModelSpec
from tandem.kernels.arguments import DTYPE_CODES, address, address_of_floats, require_whole
from tandem.kernels.layers import LayerParameters, NativeJoinLayers, NativeLayers
from tandem.kernels.native import (
    Integer,
    KernelArgumentError,
    NativeFunction,
    NativeLibrary,
    Pointer,
)
from tandem.kernels.packed import PackedLinear
from tandem.kernels.rotary import RotaryTable
from tandem.kernels.weight_arguments import NarrowProducts, WeightArguments

IntArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SlotColumns:
    """What is known of the sequence in each slot; all of it may change from step to step, and lies
    where it lies. `tokens` int32 [S, X] and `block_table` int32 [S, B]; the others [S]."""

    tokens: Tensor
    block_table: IntArray
    block_size: int
    temperature: NDArray[np.float32]
    top_k: IntArray
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seed: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WholeModel:
    """`embedding` [V, C] in a float type; None where the rows of `head` embed, too."""

    spec: ModelSpec
    embedding: Tensor | None
    layers: Sequence[LayerParameters]
    final_norm: Tensor
    head: PackedLinear
    table: RotaryTable | None


@dataclass(frozen=True, slots=True)
class StepRows:
    """int32 [N]: row i computes tokens `starts[i] .. starts[i] + counts[i]` of the sequence in
    `slots[i]`, and draws behind each of the last `draws[i]` (at least one) of them."""

    slots: IntArray
    starts: IntArray
    counts: IntArray
    draws: IntArray


class JoinedStep(Protocol):
    """Both write the KV of all tokens."""

    def draw(self, rows: StepRows) -> tuple[Tensor, Tensor]:
        """(hidden_RC before the final norm, tokens int64 [R]) of all draws. Writes what is drawn
        behind the tokens of its sequence: 0 for `NO_TOKEN`."""
        ...

    def logits(self, rows: StepRows) -> tuple[Tensor, Tensor]:
        """(hidden_RC before the final norm, logits_RV) for all draws."""
        ...


class JoinStep(Protocol):
    def __call__(
        self, model: WholeModel, slots: SlotColumns, kv: Sequence[Tensor]
    ) -> JoinedStep | None:
        """For a pool kv_B2KSD of each layer; None for a model that it cannot run."""
        ...


class SlotArguments(ctypes.Structure):
    """As slots.h has them."""

    _fields_ = (
        ("tokens", Pointer),
        ("tokens_stride", Integer),
        ("table", Pointer),
        ("table_stride", Integer),
        ("block_size", Integer),
        ("temperature", Pointer),
        ("top_k", Pointer),
        ("top_p", Pointer),
        ("min_p", Pointer),
        ("seed", Pointer),
    )

    @classmethod
    def of(cls, slots: SlotColumns) -> "SlotArguments":
        """Whoever holds it keeps the columns."""
        require_whole("tokens", slots.tokens, torch.int32)
        return cls(
            slots.tokens.data_ptr(),
            slots.tokens.shape[1],
            array_address("block_table", slots.block_table, np.int32),
            slots.block_table.shape[1],
            slots.block_size,
            array_address("temperature", slots.temperature, np.float32),
            array_address("top_k", slots.top_k, np.int32),
            array_address("top_p", slots.top_p, np.float32),
            array_address("min_p", slots.min_p, np.float32),
            array_address("seed", slots.seed, np.int64),
        )


class _Ends(ctypes.Structure):
    _fields_ = (
        ("table", Pointer),
        ("table_dtype", Integer),
        ("embedding_scale", ctypes.c_double),
        ("final_norm", Pointer),
        ("head", WeightArguments),
    )


class NativeJoinStep:
    def __init__(self, library: NativeLibrary, narrow: NarrowProducts) -> None:
        for name, structure in (("slots", SlotArguments), ("ends", _Ends)):
            assert library.number(f"tandem_{name}_bytes") == ctypes.sizeof(structure)
        self._narrow = narrow
        self._join_layers = NativeJoinLayers(library, narrow)
        self._run = library.function(
            "tandem_step",
            *(Pointer, Pointer, Integer, Pointer, Pointer, Pointer, Integer),
            *(Pointer, Pointer, Pointer, Pointer, Integer),
            *(Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Integer),
        )

    def __call__(
        self, model: WholeModel, slots: SlotColumns, kv: Sequence[Tensor]
    ) -> "NativeStep | None":
        spec, embedding = model.spec, model.embedding
        if embedding is not None:
            if embedding.dtype not in DTYPE_CODES or embedding.dtype is torch.int8:
                return None
            require_whole("embedding", embedding, embedding.dtype)
        if model.head.out_features != spec.vocabulary_tokens:
            return None
        ends = _Ends(
            address(embedding),
            0 if embedding is None else DTYPE_CODES[embedding.dtype],
            spec.embedding_scale,
            address_of_floats("final_norm", model.final_norm),
            self._narrow.arguments(model.head),
        )
        layers = self._join_layers(spec, model.layers, model.table)
        return NativeStep(self._run, model, layers, ends, slots, kv)


class NativeStep:
    """Holds what the addresses lead to."""

    def __init__(
        self,
        run: NativeFunction,
        model: WholeModel,
        layers: NativeLayers,
        ends: _Ends,
        slots: SlotColumns,
        kv: Sequence[Tensor],
    ) -> None:
        self._run, self._spec = run, model.spec
        arguments, pool = SlotArguments.of(slots), layers.pool(kv)
        self._held = model, layers, ends, slots, kv, arguments, pool
        self._wide_floats, self._context_tokens = layers.wide_floats, slots.tokens.shape[1]
        self._parts = (
            ctypes.addressof(layers.model),
            ctypes.addressof(layers.layers),
            len(layers.layers),
            ctypes.addressof(ends),
            ctypes.addressof(arguments),
            ctypes.addressof(pool),
            layers.tile_tokens,
        )

    def draw(self, rows: StepRows) -> tuple[Tensor, Tensor]:
        tokens_R = torch.empty(sum(rows.draws.tolist()), dtype=torch.int64)
        return self._computed(rows, tokens_R)[0], tokens_R

    def logits(self, rows: StepRows) -> tuple[Tensor, Tensor]:
        return self._computed(rows, None)

    def _computed(self, rows: StepRows, tokens_R: Tensor | None) -> tuple[Tensor, Tensor]:
        """(hidden_RC, logits_RV); where `tokens_R` are wanted they are drawn."""
        lengths = {len(rows.slots), len(rows.starts), len(rows.counts), len(rows.draws)}
        if len(lengths) > 1:
            raise KernelArgumentError("rows", sorted(lengths), "as many of each number")
        # What is drawn is written behind the last of them.
        if (end := int((rows.starts + rows.counts).max(initial=0))) >= self._context_tokens:
            raise KernelArgumentError("starts", end, f"ends below {self._context_tokens}")
        tokens, draws = sum(rows.counts.tolist()), sum(rows.draws.tolist())
        hidden = self._spec.hidden_features
        # One piece for all that is not returned, but for logits: these are long.
        work = torch.empty(tokens * 3 * hidden + self._wide_floats(tokens))
        residual = work.data_ptr()
        update = residual + 4 * tokens * hidden
        x = update + 4 * tokens * hidden
        hidden_RC = torch.empty(draws, hidden)
        logits_RV = torch.empty(draws, self._spec.vocabulary_tokens)
        self._run(
            *self._parts,
            array_address("slots", rows.slots, np.int32),
            array_address("starts", rows.starts, np.int32),
            array_address("counts", rows.counts, np.int32),
            array_address("draws", rows.draws, np.int32),
            len(rows.slots),
            residual,
            update,
            x,
            x + 4 * tokens * hidden,
            hidden_RC.data_ptr(),
            logits_RV.data_ptr(),
            address(tokens_R),
            torch.get_num_threads(),
        )
        return hidden_RC, logits_RV


def array_address(argument: str, array: NDArray[np.generic], dtype: type[np.generic]) -> int:
    """Of one contiguous piece of a given type."""
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise KernelArgumentError(argument, array.dtype, f"contiguous {dtype.__name__}")
    address: int = array.__array_interface__["data"][0]
    return address
