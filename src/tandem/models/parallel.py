"""Which part of a model a rank holds, and over how many ranks it can be cut. Knows sizes only, so
it needs no torch.

A worker of several ranks cuts its layers into stages, and every layer of a stage over the tensor
ranks by heads, feed-forward features and vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.models.parameters import (
    DecoderParts,
    LayerParts,
    TensorPart,
)


@dataclass(frozen=True, slots=True)
class Place:
    """One rank of a worker. With `sequence_parallel` each tensor rank keeps the activations of
    some tokens only, wherever a layer works token by token."""

    tensor_rank: int = 0
    tensor_ranks: int = 1
    stage: int = 0
    stages: int = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        assert 0 <= self.tensor_rank < self.tensor_ranks
        assert 0 <= self.stage < self.stages

    @property
    def rank(self) -> int:
        """The place among all ranks of the worker; rank 0 leads."""
        return self.stage * self.tensor_ranks + self.tensor_rank

    @property
    def is_first(self) -> bool:
        """Whether this rank turns token ids into features."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank has logits, and so draws tokens."""
        return self.stage == self.stages - 1


WHOLE = Place()


def places(tensor_ranks: int, stages: int, sequence_parallel: bool = False) -> tuple[Place, ...]:
    """All places of a worker, by rank."""
    return tuple(
        Place(tensor_rank, tensor_ranks, stage, stages, sequence_parallel)
        for stage in range(stages)
        for tensor_rank in range(tensor_ranks)
    )


@dataclass(frozen=True, slots=True)
class KvShare:
    """What one rank keeps of the KV of every token: `layers` from `first_layer`, and of them
    `heads` KV heads from `first_head`. Several ranks may keep the same heads."""

    first_layer: int
    layers: int
    first_head: int
    heads: int


def kv_share(spec: ModelSpec, place: Place) -> KvShare:
    """Raises `InvalidConfiguration` if `spec` (a whole model) cannot be cut like this."""
    check_place(spec, place)
    kv_heads, ranks = spec.attention.kv_heads, place.tensor_ranks
    first_layer, layers = even_share(spec.layers, place.stage, place.stages)
    first_head = place.tensor_rank * kv_heads // ranks
    return KvShare(first_layer, layers, first_head, max(1, kv_heads // ranks))


def even_share(count: int, index: int, parts: int) -> tuple[int, int]:
    """(first, number) of things 0 .. count that fall to one of several; the first get one more."""
    each, left = divmod(count, parts)
    return index * each + min(index, left), each + (index < left)


def equal_share(count: int, place: Place) -> tuple[int, int]:
    """(first, number) of things 0 .. count that fall to a tensor rank. All ranks have as many, so
    that what they make can be joined; the last ones may reach beyond the end."""
    each = -(-count // place.tensor_ranks)
    return place.tensor_rank * each, each


def local_spec(spec: ModelSpec, place: Place) -> ModelSpec:
    """The model as one rank sees it: its layers, heads and feed-forward features. The vocabulary
    stays whole, because token ids do. Raises `InvalidConfiguration` as `kv_share` does."""
    share = kv_share(spec, place)
    attention = spec.attention
    _, inner = equal_share(spec.feed_forward_features, place)
    return replace(
        spec,
        layers=share.layers,
        feed_forward_features=inner,
        attention=replace(
            attention,
            heads=attention.heads // place.tensor_ranks,
            kv_heads=share.heads,
            window_tokens=attention.window_tokens[
                share.first_layer : share.first_layer + share.layers
            ],
        ),
    )


def check_place(spec: ModelSpec, place: Place) -> None:
    """Raises `InvalidConfiguration` with the option at fault."""
    for _, problem in refused_division(spec, place.tensor_ranks, place.stages):
        raise InvalidConfiguration(problem)


@dataclass(frozen=True, slots=True)
class Cut:
    """The slice of a tensor that a rank reads, of `shape` when filled up with zeros."""

    part: TensorPart
    rows: slice
    columns: slice
    shape: tuple[int, ...]

    @property
    def is_filled_up(self) -> bool:
        read = (self.rows.stop - self.rows.start, self.columns.stop - self.columns.start)
        return read[: len(self.shape)] != self.shape


def cut(part: TensorPart, place: Place) -> Cut:
    """What of a tensor belongs to a rank."""
    extents = [*part.shape, 1][:2]
    slices = [slice(0, extent) for extent in extents]
    shape = list(part.shape)
    if part.split_axis is not None:
        axis, extent, unit = part.split_axis, part.shape[part.split_axis], part.split_unit
        first, count = _units(extent // unit, part.repeats, place)
        shape[axis] = count * unit
        slices[axis] = slice(min(first * unit, extent), min((first + count) * unit, extent))
    return Cut(part, slices[0], slices[1], tuple(shape))


def _units(units: int, repeats: bool, place: Place) -> tuple[int, int]:
    if repeats and units < place.tensor_ranks:
        return place.tensor_rank * units // place.tensor_ranks, 1
    return equal_share(units, place)


def layers_of(parts: DecoderParts, place: Place) -> tuple[LayerParts, ...]:
    first, layers = even_share(len(parts.layers), place.stage, place.stages)
    return parts.layers[first : first + layers]


def refused_division(spec: ModelSpec, tensor_ranks: int, stages: int) -> Iterator[tuple[str, str]]:
    """The options at fault, each with what is wrong with it; none if `spec` can be cut so."""
    attention = spec.attention
    if attention.heads % tensor_ranks:
        yield (
            "tensor_parallel",
            f"tensor_parallel is {tensor_ranks}; expected a divisor of the {attention.heads} "
            "attention heads of this model",
        )
    if attention.kv_heads % tensor_ranks and tensor_ranks % attention.kv_heads:
        yield (
            "tensor_parallel",
            f"tensor_parallel is {tensor_ranks}; expected a divisor or a multiple of the "
            f"{attention.kv_heads} KV heads of this model",
        )
    if stages > spec.layers:
        yield (
            "pipeline_parallel",
            f"pipeline_parallel is {stages}; this model has {spec.layers} layers to share out",
        )
