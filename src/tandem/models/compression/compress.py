"""Makes a compressed checkpoint of one of floats, layer by layer, and measures it on the way.

Held-out texts go through the original and through what has become of it side by side; calibration
texts go through the latter alone, so that each layer is fitted to the inputs that it will have.
One layer is in memory at a time, besides the hidden states of the texts and one file of results.
Axes: T tokens, N output features, C input features.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.kernels.faces import reference_kernels
from tandem.models.checkpoint import INDEX_NAME, SafetensorsWeights, weight_files
from tandem.models.compression.checkpoint import CheckpointWriter, ReplacedWeights
from tandem.models.compression.layer_walk import (
    InputSums,
    NormedLinear,
    Stream,
    linears_of,
    load_layer,
    module_name,
    observing,
    packed_linears,
    rounding_inputs,
)
from tandem.models.compression.plans import CompressedMatrix, Plan
from tandem.models.compression.quality import Quality, QualitySums
from tandem.models.compression.scheme import is_ignored
from tandem.models.compression.smoothquant import smooth
from tandem.models.configuration import CONFIG_NAME, read_model_spec
from tandem.models.decoder import Decoder
from tandem.models.directory import read_fields
from tandem.models.formats.choose import refuse_quantized
from tandem.models.new_folder import copy_texts, new_folder, require_absent
from tandem.models.parameters import (
    LayerParts,
    LinearParts,
    TensorPart,
    all_parts,
    decoder_parts,
)

HEAD = "lm_head"
TIED_HEAD = frozenset({f"{HEAD}.weight"})
# Logits of large vocabularies are large.
JUDGED_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class JudgedText:
    """A text of which the tokens from `first` on are judged: the reply of a chat, or all but the
    first token."""

    ids: Sequence[int]
    first: int = 1

    def __post_init__(self) -> None:
        assert 0 < self.first < len(self.ids)


@dataclass(frozen=True, slots=True)
class Texts:
    """Token ids of texts that codes are fitted to, and texts that they are judged by."""

    calibration: Sequence[Sequence[int]]
    held_out: Sequence[JudgedText]


@dataclass(frozen=True, slots=True)
class Compressed:
    """What has become of a checkpoint. Bytes are those of the files of weights."""

    matrices: int
    bytes_before: int
    bytes_after: int
    quality: Quality


def compress_checkpoint(
    model: Path,
    out: Path,
    plan: Plan,
    texts: Texts,
    on_layer: Callable[[], None] = lambda: None,
) -> Compressed:
    """Makes the folder `out` of that of a model; `on_layer` is called after each layer. Raises
    `InvalidConfiguration` when the model cannot be compressed so, or `out` is there already."""
    require_absent(out)
    refuse_quantized(model, "tandem compress")
    spec = read_model_spec(model)
    parts = decoder_parts(spec)
    for linear in (linear for layer in parts.layers for linear in linears_of(layer)):
        _check(linear.parts, plan)
    if parts.head is not None:
        _check(LinearParts((parts.head,)), plan)
    with SafetensorsWeights(model) as source, new_folder(out) as folder, torch.inference_mode():
        source.check(all_parts(parts), TIED_HEAD if spec.tied_embeddings else frozenset())
        copy_texts(model, folder)
        (folder / INDEX_NAME).unlink(missing_ok=True)
        walk = _Walk(spec, source, plan, CheckpointWriter(folder), texts)
        walk.copy(parts.embedding)
        for index, layer in enumerate(parts.layers):
            walk.compress_layer(index, layer)
            on_layer()
        walk.copy(parts.final_norm)
        if parts.head is not None:
            walk.compress_head(parts.head)
        quality = walk.quality()
        walk.writer.finish()
        config = {**read_fields(model / CONFIG_NAME).values, **plan.config(walk.ignored)}
        (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n")
    return Compressed(walk.matrices, _file_bytes(model), _file_bytes(out), quality)


def _file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in weight_files(folder) if path.name != INDEX_NAME)


def _check(linear: LinearParts, plan: Plan) -> None:
    """Raises `InvalidConfiguration` where the plan does not fit, or would tear apart what engines
    multiply with as one."""
    modules = [module_name(part) for part in linear.weights]
    ignored = [module for module in modules if is_ignored(module, plan.ignore)]
    if ignored and len(ignored) < len(modules):
        others = ", ".join(module for module in modules if module not in ignored)
        raise InvalidConfiguration(
            f"--ignore names {ignored[0]} and not {others}; expected all of them or none, since "
            "engines multiply with them as one matrix"
        )
    if not ignored:
        plan.check(modules[0], linear.weights[0].shape[1])


class _Walk:
    """Owns the texts' hidden states before the next layer, and the last layer of both models."""

    def __init__(
        self,
        spec: ModelSpec,
        source: SafetensorsWeights,
        plan: Plan,
        writer: CheckpointWriter,
        texts: Texts,
    ) -> None:
        self.writer = writer
        self.matrices = 0
        # A head that is the embedding is a module of its own all the same.
        self.ignored = [HEAD] if spec.tied_embeddings else []
        self._spec = spec
        self._source = source
        self._plan = plan
        self._kernels = reference_kernels()
        self._calibration = Stream(_tensors(texts.calibration) if plan.calibrates else ())
        self._judged_from = [text.first for text in texts.held_out]
        held_out = _tensors([text.ids for text in texts.held_out])
        self._before, self._after = Stream(held_out), Stream(held_out)
        self._last: tuple[Decoder, Decoder] | None = None

    def copy(self, part: TensorPart) -> None:
        """A tensor as it is."""
        self.writer.add({part.name: self._source.read(part)})

    def compress_layer(self, index: int, parts: LayerParts) -> None:
        linears = linears_of(parts)
        before = load_layer(self._spec, index, self._source, self._kernels)
        self._before.advance(before)
        replaced: dict[str, Tensor] = {}
        for linear, inputs in zip(linears, self._observe(before, linears), strict=True):
            self._compress(linear, inputs, replaced)
        norms = (parts.attention_norm, parts.query_norm, parts.key_norm, parts.feed_forward_norm)
        for norm in norms:
            if norm is not None and norm.name not in replaced:
                self.copy(norm)
        source = ReplacedWeights(self._source, replaced)
        after = load_layer(self._spec, index, source, self._kernels)
        if self._plan.rounds_inputs:
            packed = zip(linears, packed_linears(after.weights.layers[0]), strict=True)
            after = rounding_inputs(
                after, [each for linear, each in packed if not self._is_ignored(linear)]
            )
        self._calibration.advance(after)
        self._after.advance(after)
        self._last = (before, after)

    def compress_head(self, part: TensorPart) -> None:
        """After the last layer."""
        assert self._last is not None
        before, after = self._last
        head = NormedLinear(LinearParts((part,)))
        inputs = self._sums(head)
        if inputs is not None:
            for state_TC in self._calibration.states:
                inputs.add(after.normed(state_TC))
        replaced: dict[str, Tensor] = {}
        self._compress(head, inputs, replaced)
        if part.name in replaced:
            packed = self._kernels.pack(replaced[part.name], None, "float32")
            weights = replace(after.weights, head=packed)
            after = Decoder(after.spec, weights, after.kernels, place=after.place)
            if self._plan.rounds_inputs:
                after = rounding_inputs(after, [packed])
            self._last = (before, after)

    def quality(self) -> Quality:
        """Of the whole model, once its head is done."""
        assert self._last is not None
        before, after = self._last
        sums = QualitySums()
        states = zip(self._before.states, self._after.states, strict=True)
        for ids_T, first, (before_TC, after_TC) in zip(
            self._before.texts, self._judged_from, states, strict=True
        ):
            for start in range(first, len(ids_T), JUDGED_AT_ONCE):
                said_T = ids_T[start : start + JUDGED_AT_ONCE]
                asked = slice(start - 1, start - 1 + len(said_T))
                sums.add(said_T, before.logits(before_TC[asked]), after.logits(after_TC[asked]))
        return sums.quality()

    def _observe(
        self, layer: Decoder, linears: Sequence[NormedLinear]
    ) -> tuple[InputSums | None, ...]:
        """What comes to each matrix of a layer, where that is wanted."""
        sums = tuple(map(self._sums, linears))
        packed = packed_linears(layer.weights.layers[0])
        wanted = [(each, inputs) for each, inputs in zip(packed, sums, strict=True) if inputs]
        if wanted:
            for _ in self._calibration.passed(observing(layer, wanted)):
                pass
        return sums

    def _sums(self, linear: NormedLinear) -> InputSums | None:
        if not self._plan.calibrates or self._is_ignored(linear):
            return None
        features = linear.parts.weights[0].shape[1]
        return InputSums.of_features(features, hessian=self._plan.wants_hessians)

    def _compress(
        self, linear: NormedLinear, inputs: InputSums | None, replaced: dict[str, Tensor]
    ) -> None:
        """Writes a matrix, or several that are multiplied with as one, and puts what they are now
        into `replaced`."""
        parts = linear.parts
        for bias in parts.biases:
            self.copy(bias)
        if self._is_ignored(linear):
            for part in parts.weights:
                self.ignored.append(module_name(part))
                self.copy(part)
            return
        if inputs is not None and not inputs.are_finite:
            raise InvalidConfiguration(
                f"{module_name(parts.weights[0])} gets inputs that are no finite numbers; the "
                "checkpoint is damaged, or does not bear the calibration texts"
            )
        weight_NC = self._weight(parts)
        if linear.norm is not None and inputs is not None and self._plan.smoothing is not None:
            gain_C, offset = self._source.read(linear.norm), self._spec.norm.offset
            smoothed = smooth(gain_C, offset, inputs.peak, weight_NC, self._plan.smoothing)
            replaced[linear.norm.name] = smoothed.norm
            self.writer.add({linear.norm.name: smoothed.norm})
            weight_NC, inputs = weight_NC * smoothed.factor, inputs.divided(smoothed.factor)
        whole = self._plan.compress(weight_NC, inputs, self._stored(parts.weights[0]))
        start = 0
        for part in parts.weights:
            rows: CompressedMatrix = whole.rows(slice(start, start + part.shape[0]))
            self.writer.add(rows.tensors(module_name(part)))
            replaced[part.name] = rows.values()
            self.matrices += 1
            start += part.shape[0]

    def _is_ignored(self, linear: NormedLinear) -> bool:
        return is_ignored(module_name(linear.parts.weights[0]), self._plan.ignore)

    def _weight(self, linear: LinearParts) -> Tensor:
        """weight_NC of all its parts below each other, float32."""
        return torch.cat([self._source.read(part).to(torch.float32) for part in linear.weights])

    def _stored(self, part: TensorPart) -> torch.dtype:
        stored = self._source.read(part, slice(0, 1)).dtype
        return torch.float32 if stored is torch.float64 else stored


def _tensors(texts: Sequence[Sequence[int]]) -> list[Tensor]:
    return [torch.tensor(ids, dtype=torch.int64) for ids in texts]
