"""The weights of a decoder as its forward pass uses them: cut, fused, packed, on their device.

Axes: V vocabulary, C hidden, D head dim, N output features.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tandem.facts.model import ModelSpec
from tandem.kernels.coded import CodedWeight
from tandem.kernels.faces import Kernels
from tandem.kernels.native import return_freed_memory
from tandem.kernels.packed import FLOAT_STORAGE, PackedLinear, Storage
from tandem.models.checkpoint import WeightSource
from tandem.models.formats.contract import CodeForm, groups, joint_form
from tandem.models.parallel import WHOLE, Cut, Place, cut, layers_of
from tandem.models.parameters import (
    SLAB_ROWS,
    LayerParts,
    LinearParts,
    TensorPart,
    decoder_parts,
)

# Unpacked matrices leave holes in the heap that the next ones do not fit in. Pages are made anew
# behind what was given back, so that doing it after each layer would take longer.
LAYERS_A_TRIM = 4


@dataclass(frozen=True, slots=True)
class WeightForm:
    """`storage` is the precision of the matrices, `compute` that of everything else: norms, biases,
    activations and the residual stream. With `as_stored`, matrices that the source holds as codes
    stay those codes, and `storage` is that of the others."""

    storage: Storage
    compute: torch.dtype
    device: torch.device
    as_stored: bool = False

    @property
    def embedding_dtype(self) -> torch.dtype:
        # Rows are looked up, not multiplied: int8 would need scales and save next to nothing.
        return FLOAT_STORAGE.get(self.storage, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Norms are [C], `query_norm` and `key_norm` [D]. Rows of `qkv`: all of q, then k, then v;
    rows of `gate_up`: the gates first."""

    attention_norm: Tensor
    qkv: PackedLinear
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_output: PackedLinear
    feed_forward_norm: Tensor
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """`embedding` is [V, C], or None when the head serves as embedding too or a stage before
    embeds; `final_norm` and `head` are None before the last stage; `compute` is the precision of
    activations and residual stream."""

    embedding: Tensor | None
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor | None
    head: PackedLinear | None
    compute: torch.dtype

    @property
    def device(self) -> torch.device:
        return self.layers[0].attention_norm.device

    @property
    def bytes(self) -> int:
        """Of the matrices; norms and biases are left out."""
        matrices = sum(
            packed.weight_bytes
            for layer in self.layers
            for packed in (layer.qkv, layer.attention_output, layer.gate_up, layer.down)
        )
        embedding_bytes = 0 if self.embedding is None else self.embedding.nbytes
        head_bytes = 0 if self.head is None else self.head.weight_bytes
        return matrices + embedding_bytes + head_bytes


def assemble_weights(
    spec: ModelSpec,
    source: WeightSource,
    form: WeightForm,
    kernels: Kernels,
    *,
    place: Place = WHOLE,
) -> DecoderWeights:
    """Reads, fuses and packs one matrix after the other, so that beside the result at most one
    unpacked matrix is in memory. `spec` is that of the whole model; only what belongs to `place`
    is read of it."""
    parts = decoder_parts(spec)
    assembly = Assembly(source, form, kernels, place)
    head = None
    # The largest matrices come first, while little else is in memory beside their unpacked form.
    if place.is_last:
        head = assembly.linear(LinearParts((parts.head or parts.embedding,)))
    # A head that is quantised here is too coarse to look rows up in: each feeds the whole network.
    shared = head is not None and parts.head is None and form.storage in FLOAT_STORAGE
    embedding_VC = None
    if place.is_first and not shared:
        embedding_VC = assembly.stack((parts.embedding,), form.embedding_dtype)
    return DecoderWeights(
        embedding=embedding_VC,
        layers=tuple(_layers(assembly, layers_of(parts, place))),
        final_norm=assembly.vector(parts.final_norm) if place.is_last else None,
        head=head,
        compute=form.compute,
    )


def _layers(assembly: "Assembly", parts: Sequence[LayerParts]) -> Iterator[LayerWeights]:
    for number, layer in enumerate(parts, 1):
        yield _layer(assembly, layer)
        if number % LAYERS_A_TRIM == 0:
            return_freed_memory()


def _layer(assembly: "Assembly", parts: LayerParts) -> LayerWeights:
    query_norm, key_norm = parts.query_norm, parts.key_norm
    return LayerWeights(
        attention_norm=assembly.vector(parts.attention_norm),
        qkv=assembly.linear(parts.qkv),
        query_norm=None if query_norm is None else assembly.vector(query_norm),
        key_norm=None if key_norm is None else assembly.vector(key_norm),
        attention_output=assembly.linear(parts.attention_output),
        feed_forward_norm=assembly.vector(parts.feed_forward_norm),
        gate_up=assembly.linear(parts.gate_up),
        down=assembly.linear(parts.down),
    )


@dataclass(frozen=True, slots=True)
class Assembly:
    """Reads the tensors of a source into the form that a forward pass uses."""

    source: WeightSource
    form: WeightForm
    kernels: Kernels
    place: Place = WHOLE

    def linear(self, parts: LinearParts) -> PackedLinear:
        biases = parts.biases
        if self.place.tensor_rank and any(bias.split_axis is None for bias in biases):
            # What the ranks' outputs are summed to gets its bias once.
            biases = ()
        bias_N = self.stack(biases, self.form.compute) if biases else None
        if self.form.as_stored and (coded := self.stack_coded(parts.weights)) is not None:
            return self.kernels.pack_coded(coded, bias_N)
        unpacked_NC = self.stack(parts.weights, FLOAT_STORAGE.get(self.form.storage))
        return self.kernels.pack(unpacked_NC, bias_N, self.form.storage)

    def vector(self, part: TensorPart) -> Tensor:
        return self.stack((part,), self.form.compute)

    def stack(self, parts: Sequence[TensorPart], dtype: torch.dtype | None) -> Tensor:
        """The rank's slices of the parts below each other, in memory of their own: never a view of
        a mapped file. Without a `dtype` as they are stored, in float32 where they differ."""
        cuts = [cut(part, self.place) for part in parts]
        stacked: Tensor | None = None
        start = 0
        for piece in cuts:
            for first in range(piece.rows.start, piece.rows.stop, SLAB_ROWS):
                some_rows = slice(first, min(first + SLAB_ROWS, piece.rows.stop))
                slab = self.source.read(piece.part, some_rows, piece.columns)
                if stacked is None:
                    stacked = self._room(cuts, dtype or slab.dtype)
                elif dtype is None and slab.dtype is not stacked.dtype:
                    stacked = stacked.to(torch.float32)
                place = start + first - piece.rows.start
                target = stacked.narrow(0, place, slab.shape[0]).narrow(-1, 0, slab.shape[-1])
                target.copy_(slab)
            start += piece.shape[0]
        return self._room(cuts, dtype or torch.float32) if stacked is None else stacked

    def _room(self, cuts: Sequence[Cut], dtype: torch.dtype) -> Tensor:
        rows = sum(piece.shape[0] for piece in cuts)
        room = torch.empty((rows, *cuts[0].shape[1:]), dtype=dtype, device=self.form.device)
        return room.zero_() if any(piece.is_filled_up for piece in cuts) else room

    def stack_coded(self, parts: Sequence[TensorPart]) -> CodedWeight | None:
        """The same of matrices as codes; None where the source does not hold all of them so, they
        cannot be one, or the rank's slice is filled up."""
        cuts = [cut(part, self.place) for part in parts]
        if any(piece.is_filled_up for piece in cuts):
            return None
        firsts = [next(self._coded_slabs(piece)) for piece in cuts]
        forms = [_form(slab) for slab in firsts if slab is not None]
        columns = cuts[0].columns.stop - cuts[0].columns.start
        form = joint_form(forms, columns) if len(forms) == len(cuts) else None
        if form is None:
            return None
        rows = sum(piece.shape[0] for piece in cuts)
        stacked, start = _room_for(rows, columns, form), 0
        for piece in cuts:
            for slab in self._coded_slabs(piece):
                assert slab is not None
                stacked = _placed(stacked, _in_form(slab, form), start)
                start += slab.codes.shape[0]
        return stacked

    def _coded_slabs(self, piece: Cut) -> Iterator[CodedWeight | None]:
        for first in range(piece.rows.start, piece.rows.stop, SLAB_ROWS):
            some_rows = slice(first, min(first + SLAB_ROWS, piece.rows.stop))
            yield self.source.read_coded(piece.part, some_rows, piece.columns)


def _form(coded: CodedWeight) -> CodeForm:
    levels = coded.levels or 1 << coded.bits
    return CodeForm(coded.bits, coded.size, coded.offset is not None, coded.zero, levels)


def _room_for(rows: int, columns: int, form: CodeForm) -> CodedWeight:
    numbers = (rows, groups(columns, form.size))
    return CodedWeight(
        codes=torch.empty((rows, columns), dtype=torch.uint8),
        scale=torch.empty(numbers),
        offset=None,
        zero=form.zero,
        bits=4 if form.bits == 4 else 8,
        size=form.size,
        levels=form.levels,
    )


def _in_form(slab: CodedWeight, form: CodeForm) -> CodedWeight:
    """The same values with the zero and the groups of that form."""
    if (slab.zero, slab.size) == (form.zero, form.size):
        return slab
    codes_NC, columns = slab.codes, slab.codes.shape[1]
    if slab.zero != form.zero:
        codes_NC = codes_NC + (form.zero - slab.zero)
    group_G = torch.arange(0, columns, form.size) // min(slab.size, columns)
    return replace(
        slab,
        codes=codes_NC,
        scale=slab.scale[:, group_G],
        offset=None if slab.offset is None else slab.offset[:, group_G],
        zero=form.zero,
        size=form.size,
    )


def _placed(stacked: CodedWeight, slab: CodedWeight, start: int) -> CodedWeight:
    """With the slab from that row on."""
    rows = slice(start, start + slab.codes.shape[0])
    stacked.codes[rows], stacked.scale[rows] = slab.codes, slab.scale
    if slab.offset is not None:
        if stacked.offset is None:
            stacked = replace(stacked, offset=torch.zeros_like(stacked.scale))
        assert stacked.offset is not None
        stacked.offset[rows] = slab.offset
    return stacked
