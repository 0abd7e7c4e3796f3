"""Guesses of heads beside a model's own (Medusa) in one call: of a small model, what is done for
them operation by operation takes longer than a step.

Axes: D sequences, H guesses behind each other, C hidden, V vocabulary.
"""

import ctypes
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tandem.facts.model import NormSpec
from tandem.kernels.arguments import address_of_floats, require_whole
from tandem.kernels.native import Integer, NativeFunction, NativeLibrary, Pointer
from tandem.kernels.packed import PackedLinear
from tandem.kernels.prompt_lookup import NgramSizes
from tandem.kernels.steps import IntArray, SlotArguments, SlotColumns, array_address
from tandem.kernels.weight_arguments import NarrowProducts, WeightArguments


@dataclass(frozen=True, slots=True)
class DraftHeads:
    """Head i guesses the token i + 1 places behind the one that the model itself draws, from
    normed + silu(`layers`(normed)) by the model's own `head`; `layers` are those of all heads, one
    below the other: [H C, C]."""

    layers: PackedLinear
    final_norm: Tensor
    norm: NormSpec
    head: PackedLinear


@dataclass(frozen=True, slots=True)
class HeadsLookUp:
    """A guess whose chance has a logarithm below `sure` gives way to what followed an end of one of
    these `sizes` before."""

    sure: float
    sizes: NgramSizes


class GuessAhead(Protocol):
    def __call__(self, slots: IntArray, ends: IntArray, hidden_DC: Tensor, heads: int) -> Tensor:
        """guesses_DH (int64) of the first so many heads, behind the first `ends` [D] tokens of
        sequences in `slots` [D], from the hidden states, before the model's final norm, that the
        last of these were drawn from; drawn as the tokens themselves will be, by nothing but
        temperature, top_k, top_p and min_p. Behind one that is `NO_TOKEN` all are."""
        ...


class JoinDraftHeads(Protocol):
    def __call__(
        self, heads: DraftHeads, look_up: HeadsLookUp, slots: SlotColumns
    ) -> GuessAhead: ...


class _Heads(ctypes.Structure):
    _fields_ = (
        ("hidden", Integer),
        ("final_norm", Pointer),
        ("norm_eps", ctypes.c_double),
        ("norm_offset", ctypes.c_double),
        ("layers", WeightArguments),
        ("head", WeightArguments),
    )


class _LookUp(ctypes.Structure):
    _fields_ = (
        ("sure", ctypes.c_double),
        ("least", Integer),
        ("most", Integer),
    )


class NativeJoinDraftHeads:
    def __init__(self, library: NativeLibrary, narrow: NarrowProducts) -> None:
        for name, structure in (("heads", _Heads), ("heads_look_up", _LookUp)):
            assert library.number(f"tandem_{name}_bytes") == ctypes.sizeof(structure)
        self._narrow = narrow
        self._run = library.function(
            "tandem_guess_ahead",
            *(Pointer, Pointer, Pointer, Pointer, Pointer, Integer, Integer),
            *(Pointer, Pointer, Pointer, Pointer, Pointer, Integer),
        )

    def __call__(
        self, heads: DraftHeads, look_up: HeadsLookUp, slots: SlotColumns
    ) -> "NativeGuessAhead":
        arguments = _Heads(
            heads.head.in_features,
            address_of_floats("final_norm", heads.final_norm),
            heads.norm.eps,
            heads.norm.offset,
            self._narrow.arguments(heads.layers),
            self._narrow.arguments(heads.head),
        )
        looks = _LookUp(look_up.sure, look_up.sizes.least, look_up.sizes.most)
        return NativeGuessAhead(self._run, heads, arguments, looks, slots)


class NativeGuessAhead:
    """Holds what the addresses lead to."""

    def __init__(
        self,
        run: NativeFunction,
        heads: DraftHeads,
        arguments: _Heads,
        look_up: _LookUp,
        slots: SlotColumns,
    ) -> None:
        self._run, self._heads = run, heads
        of_slots = SlotArguments.of(slots)
        self._held = arguments, look_up, of_slots, slots
        self._parts = tuple(map(ctypes.addressof, (arguments, look_up, of_slots)))

    def __call__(self, slots: IntArray, ends: IntArray, hidden_DC: Tensor, heads: int) -> Tensor:
        require_whole("hidden_DC", hidden_DC, torch.float32)
        rows, hidden = hidden_DC.shape
        assert 0 < heads * hidden <= self._heads.layers.out_features
        normed_DC = torch.empty(rows, hidden)
        states_RC = torch.empty(rows * heads, hidden)
        logits_RV = torch.empty(rows * heads, self._heads.head.out_features)
        guesses_DH = torch.empty(rows, heads, dtype=torch.int64)
        self._run(
            *self._parts,
            array_address("slots", slots, np.int32),
            array_address("ends", ends, np.int32),
            rows,
            heads,
            hidden_DC.data_ptr(),
            normed_DC.data_ptr(),
            states_RC.data_ptr(),
            logits_RV.data_ptr(),
            guesses_DH.data_ptr(),
            torch.get_num_threads(),
        )
        return guesses_DH
