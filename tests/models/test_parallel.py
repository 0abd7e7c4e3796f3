"""Who holds what: the ranks' shares together are the model, and nobody reads more than its own."""

import math
from dataclasses import dataclass, field, replace

import pytest
import torch

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import AttentionSpec, ModelSpec, NormSpec, RopeSpec
from tandem.kernels.faces import reference_kernels
from tandem.models.checkpoint import EVERY, DummyWeights, SafetensorsWeights, WeightSource
from tandem.models.configuration import read_model_spec
from tandem.models.parallel import (
    KvShare,
    Place,
    cut,
    even_share,
    kv_share,
    layers_of,
    local_spec,
    places,
)
from tandem.models.parameters import TensorPart, all_parts, decoder_parts, parts_of_layer
from tandem.models.weights import WeightForm, assemble_weights

FP32 = WeightForm("float32", torch.float32, torch.device("cpu"))


def spec_of(heads: int = 8, kv_heads: int = 4, layers: int = 5, **changes) -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM",
        layers=layers,
        hidden_features=32,
        feed_forward_features=24,
        vocabulary_tokens=50,
        context_tokens=64,
        norm=NormSpec(eps=1e-5),
        attention=AttentionSpec(heads, kv_heads, 4, 0.5, tuple(range(1, layers + 1))),
        rope=RopeSpec(),
        **changes,
    )


@dataclass
class Recording:
    """Counts what is read of another source."""

    source: WeightSource
    read_elements: dict[str, int] = field(default_factory=dict)

    def read(self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY) -> torch.Tensor:
        found = self.source.read(part, rows, columns)
        self.read_elements[part.name] = self.read_elements.get(part.name, 0) + found.numel()
        return found


def parameters_of(spec: ModelSpec, place: Place) -> int:
    """How many numbers of a whole model a rank holds; a tied embedding counts once."""
    parts = decoder_parts(spec)
    held = {part for layer in layers_of(parts, place) for part in parts_of_layer(layer)}
    if place.is_first:
        held.add(parts.embedding)
    if place.is_last:
        held |= {parts.final_norm, parts.head or parts.embedding}
    return sum(math.prod(cut(part, place).shape) for part in held)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("tensor_ranks", [1, 2, 4])
def test_no_rank_reads_more_than_its_share(tensor_ranks, stages, tied):
    spec = replace(spec_of(), vocabulary_tokens=48, tied_embeddings=tied)
    parts = {part.name: part for part in all_parts(decoder_parts(spec))}
    together = dict.fromkeys(parts, 0)
    for place in places(tensor_ranks, stages):
        source = Recording(DummyWeights())
        weights = assemble_weights(spec, source, FP32, reference_kernels(), place=place)
        if tied and place.is_first and place.is_last:
            assert weights.embedding is None
        assert sum(source.read_elements.values()) == parameters_of(spec, place)
        for name, elements in source.read_elements.items():
            whole = math.prod(parts[name].shape)
            is_cut = parts[name].split_axis is not None
            assert elements == (whole // tensor_ranks if is_cut else whole)
            together[name] += elements
    for name, part in parts.items():
        times = tensor_ranks if part.split_axis is None else 1
        if name == "model.embed_tokens.weight" and tied and stages > 1:
            times = 2  # looked up on the first stage, multiplied with on the last
        assert together[name] == math.prod(part.shape) * times


@pytest.mark.parametrize("name", ["llama_biased", "qwen3"])
def test_slices_of_a_checkpoint_are_slices(checkpoints, name):
    directory = checkpoints(name).directory
    with SafetensorsWeights(directory) as checkpoint:
        for part in all_parts(decoder_parts(read_model_spec(directory))):
            whole = checkpoint.read(part)
            assert torch.equal(checkpoint.read(part, slice(3, 17)), whole[3:17])
            if len(part.shape) == 2:
                piece = checkpoint.read(part, slice(3, 17), slice(5, 9))
                assert torch.equal(piece, whole[3:17, 5:9])


def test_slices_of_random_weights_are_those_of_the_whole():
    source = DummyWeights(5)
    part = TensorPart("some.weight", (2100, 6))
    whole = source.read(part)
    assert torch.equal(source.read(part, slice(1000, 2050), slice(2, 5)), whole[1000:2050, 2:5])


def test_every_rank_knows_its_kv():
    found = [kv_share(spec_of(), place) for place in places(2, 2)]
    assert found == [
        KvShare(0, 3, 0, 2),
        KvShare(0, 3, 2, 2),
        KvShare(3, 2, 0, 2),
        KvShare(3, 2, 2, 2),
    ]
    # Two KV heads for four ranks: neighbours keep the same one.
    few = [kv_share(spec_of(kv_heads=2), place) for place in places(4, 1)]
    assert [(share.first_head, share.heads) for share in few] == [(0, 1), (0, 1), (1, 1), (1, 1)]


def test_a_rank_sees_a_smaller_model():
    share = local_spec(spec_of(), Place(1, 2, 1, 2))
    assert share.layers == 2
    assert share.attention.window_tokens == (4, 5)
    assert (share.attention.heads, share.attention.kv_heads) == (4, 2)
    assert (share.feed_forward_features, share.vocabulary_tokens) == (12, 50)
    assert local_spec(spec_of(), Place()) == spec_of()


def test_ranks_count_stage_after_stage():
    assert [place.rank for place in places(2, 3)] == list(range(6))


@pytest.mark.parametrize(("count", "parts"), [(5, 2), (7, 3), (4, 4), (61, 8)])
def test_layers_are_shared_out_evenly(count, parts):
    shares = [even_share(count, index, parts) for index in range(parts)]
    covered = [thing for first, number in shares for thing in range(first, first + number)]
    assert covered == list(range(count))
    numbers = [number for _, number in shares]
    assert max(numbers) - min(numbers) <= 1


@pytest.mark.parametrize(
    ("spec", "place", "message"),
    [
        (spec_of(), Place(0, 3), "tensor_parallel is 3; expected a divisor of the 8 attention"),
        (spec_of(12, 4), Place(0, 6), "tensor_parallel is 6; expected a divisor or a multiple of"),
        (spec_of(), Place(0, 1, 0, 6), "pipeline_parallel is 6; this model has 5 layers"),
    ],
)
def test_what_cannot_be_cut_is_refused(spec, place, message):
    with pytest.raises(InvalidConfiguration, match=message):
        local_spec(spec, place)


def test_uneven_widths_are_filled_up_with_zeros():
    spec = replace(spec_of(), feed_forward_features=10, vocabulary_tokens=13)
    made = [
        assemble_weights(spec, DummyWeights(), FP32, reference_kernels(), place=place)
        for place in places(4, 1)
    ]
    whole = assemble_weights(spec, DummyWeights(), FP32, reference_kernels())
    down = torch.cat([weights.layers[0].down.weight for weights in made], 1)
    assert torch.equal(down[:, :10], whole.layers[0].down.weight)
    assert down.shape == (32, 12)
    assert not down[:, 10:].any()
    embedding = torch.cat([weights.embedding for weights in made])
    assert torch.equal(embedding[:13], whole.embedding)
    assert embedding.shape == (16, 32)
    assert not embedding[13:].any()
