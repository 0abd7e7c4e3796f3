"""Models of GGUF files against the same models in safetensors, and blocks against the decoder of
llama.cpp's own package."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import gguf
from gguf import GGMLQuantizationType as Type
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import YarnScaling
from tandem.kernels.coded import STORAGE_OF_BITS
from tandem.kernels.faces import reference_kernels
from tandem.models.configuration import read_model_spec
from tandem.models.directory import find_model, model_label
from tandem.models.footprint import checkpoint_sizes, header_shapes, weight_bytes
from tandem.models.gguf.checkpoint import gguf_name, hugging_face_name
from tandem.models.gguf.weights import GgufWeights
from tandem.models.load import LoadPlan, load_decoder
from tandem.models.parallel import WHOLE
from tandem.models.parameters import TensorPart, all_parts, decoder_parts
from tests.models.gguf_files import (
    CODED_TYPES,
    finish,
    random_blocks,
    write_decoded,
    write_gguf,
)
from tests.models.paging import Chunk, poisoned_store, run
from tests.models.test_logits import FP32, PROMPT_TOKENS, shuffled_blocks, tokens_of
from tests.models.tiny import VARIANTS, Variant, build

# Which layers of a Qwen2 have windows, no GGUF file says.
IN_GGUF = [name for name in VARIANTS if name != "qwen2_window"]
# Rows of these are whole blocks of every type.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_key_value_heads": 2}
ROWS, COLUMNS = 6, 1024


def logits(path):
    decoder = load_decoder(read_model_spec(path), LoadPlan(path, FP32), reference_kernels())
    chunk = Chunk(tokens_of(1), shuffled_blocks(2), 0, PROMPT_TOKENS)
    return run(decoder, poisoned_store(decoder, 64), chunk)


@pytest.fixture(scope="session")
def wide(tmp_path_factory):
    """The folders of models whose matrices can be stored as every type."""

    def make(family):
        directory = tmp_path_factory.mktemp(family)
        build(Variant(family, WIDE), directory)
        return directory

    return {family: make(family) for family in ("llama", "qwen2")}


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_model_of_floats_has_the_logits_of_its_checkpoint(name, checkpoints, tmp_path):
    directory = checkpoints(name).directory
    found = logits(write_gguf(tmp_path / "model.gguf", directory))
    if name == "llama3":
        # Its frequencies come as factors, which are rounded.
        torch.testing.assert_close(found, logits(directory), atol=2e-5, rtol=0)
    else:
        assert found.equal(logits(directory))


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16])
def test_16_bits_are_held_as_such(kind, checkpoints, tmp_path):
    directory = checkpoints("llama2").directory
    path = write_gguf(tmp_path / "model.gguf", directory, kind)
    assert read_model_spec(path).weight_dtype == {1: "float16", 30: "bfloat16"}[kind]
    assert logits(path).equal(logits(write_decoded(tmp_path / "decoded", path, directory)))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", CODED_TYPES, ids=lambda kind: kind.name)
def test_a_quantised_model_has_the_logits_of_its_values(kind, family, wide, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", wide[family], kind)
    found = logits(path)
    assert found.std() > 0.1
    assert found.equal(logits(write_decoded(tmp_path / "decoded", path, wide[family])))


# Of q, k and v, and of gate and up: as Q4_K_M and Q5_K_M files mix them, and some more.
MIXED = [
    (Type.Q4_K, {"v_proj": Type.Q6_K}, ("int8", "int4")),
    (Type.Q5_K, {"v_proj": Type.Q6_K, "up_proj": Type.Q4_K}, ("int8", "int8")),
    (Type.Q4_0, {"k_proj": Type.Q8_0, "up_proj": Type.Q4_1}, ("int8", "int8")),
    (Type.Q8_0, {"q_proj": Type.Q5_1, "up_proj": Type.Q6_K}, ("int8", "int8")),
]


@pytest.mark.parametrize(("kind", "other_kinds", "held"), MIXED)
def test_matrices_of_unlike_types_are_codes_together(
    kind, other_kinds, held, kernels, wide, tmp_path
):
    path = write_gguf(tmp_path / "model.gguf", wide["qwen2"], kind, other_kinds=other_kinds)
    spec, as_stored = read_model_spec(path), replace(FP32, as_stored=True)
    weights = load_decoder(spec, LoadPlan(path, as_stored), kernels).weights
    layers = weights.layers
    assert {(each.qkv.storage, each.gate_up.storage) for each in layers} == {held}
    decoded = write_decoded(tmp_path / "decoded", path, wide["qwen2"])
    values = load_decoder(spec, LoadPlan(decoded, FP32), kernels).weights
    # Native kernels keep 11 bits of a scale.
    tolerance = 0.0 if kernels.name == "reference" else 1e-3
    for ours, theirs in zip(layers, values.layers, strict=True):
        for one, other in ((ours.qkv, theirs.qkv), (ours.gate_up, theirs.gate_up)):
            rows = torch.arange(one.out_features)
            found, wanted = kernels.embed(rows, one), kernels.embed(rows, other)
            torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)
    sizes = checkpoint_sizes(path, spec)
    counted = weight_bytes(
        spec, sizes.shapes, (WHOLE,), storage="float32", compute_bytes=4, codes=sizes.codes
    )
    if kernels.name == "native":
        # Norms and biases are counted, too.
        assert weights.bytes <= counted.held <= 1.05 * weights.bytes


@pytest.fixture(params=CODED_TYPES, ids=lambda kind: kind.name)
def matrix(request, tmp_path):
    """A tensor of random blocks in a file, and its values."""
    path = tmp_path / "one.gguf"
    blocks = random_blocks(request.param, (ROWS, COLUMNS), 7)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_tensor("output.weight", blocks, raw_dtype=request.param)
    values = torch.from_numpy(gguf.dequantize(blocks, request.param))
    return GgufWeights(finish(writer, path)), TensorPart("lm_head.weight", (ROWS, COLUMNS)), values


SLICES = [
    (slice(None), slice(None)),
    (slice(2, 5), slice(None)),
    (slice(1, 2), slice(256, 768)),
    (slice(0, 6), slice(32, 96)),
    (slice(3, 6), slice(224, 288)),
]


@pytest.mark.parametrize(("rows", "columns"), SLICES)
def test_blocks_have_the_values_of_the_reference(matrix, rows, columns):
    weights, part, values = matrix
    assert weights.read(part, rows, columns).equal(values[rows, columns])
    coded = weights.read_coded(part, rows, columns)
    assert coded.values().equal(values[rows, columns])
    assert coded.size % (32 // coded.bits) == 0 and coded.bits in STORAGE_OF_BITS
    assert int(coded.codes.max()) < 2**coded.bits


def test_columns_that_cut_a_group_have_values_and_no_codes(matrix):
    weights, part, values = matrix
    assert weights.read(part, slice(1, 4), slice(5, 300)).equal(values[1:4, 5:300])
    assert weights.read_coded(part, slice(1, 4), slice(5, 300)) is None
    assert weights.read_coded(part, slice(1, 4), slice(0, 300)) is None


def test_floats_have_no_codes(checkpoints, tmp_path):
    path = write_gguf(tmp_path / "model.gguf", checkpoints("qwen2").directory)
    part = decoder_parts(read_model_spec(path)).layers[0].down.weights[0]
    assert GgufWeights(path).read_coded(part) is None


@pytest.mark.parametrize("given", [1, 3])
def test_a_model_in_several_files(given, checkpoints, tmp_path):
    directory = checkpoints("qwen3").directory
    write_gguf(tmp_path / "tiny-Q8_0.gguf", directory, tensors_a_file=9)
    count = len(list(tmp_path.glob("*.gguf")))
    assert count > 2
    first, named = (tmp_path / f"tiny-Q8_0-0000{n}-of-0000{count}.gguf" for n in (1, given))
    assert find_model(str(named)) == first
    assert model_label(str(first)) == "tiny-Q8_0"
    assert logits(first).equal(logits(directory))


def test_files_that_do_not_belong_together(checkpoints, tmp_path):
    write_gguf(tmp_path / "a.gguf", checkpoints("qwen3").directory, tensors_a_file=9)
    first, second, *_ = sorted(tmp_path.glob("*.gguf"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(InvalidConfiguration, match=r"says that it is file 1 of 3; expected 2"):
        header_shapes(first)
    second.unlink()
    with pytest.raises(InvalidConfiguration, match=r"is one of 3 files.*; 2 are there"):
        header_shapes(first)


def test_shapes_are_those_of_the_checkpoint(checkpoints, tmp_path):
    directory = checkpoints("llama_biased").directory
    path = write_gguf(tmp_path / "model.gguf", directory)
    assert header_shapes(path) == header_shapes(directory)


# The key that is said otherwise, how, and what is told.
REFUSED = {
    "another architecture": (
        "general.architecture",
        lambda writer: writer.add_string("general.architecture", "mamba"),
        "general.architecture is 'mamba', which is not supported; expected one of gemma, llama",
    ),
    "a mixture of experts": (
        "",
        lambda writer: writer.add_expert_count(8),
        "qwen2.expert_count is 8; expected none; Tandem cannot run mixtures of experts",
    ),
    "scaling that is not known": (
        "",
        lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE),
        "rope_type is 'longrope', which is not supported",
    ),
    "a window of some layers": (
        "",
        lambda writer: writer.add_sliding_window(32),
        "qwen2.attention.sliding_window is 32; expected none",
    ),
    "values of another width": (
        "",
        lambda writer: writer.add_value_length(8),
        "qwen2.attention.value_length is 8; expected 16",
    ),
    "layers of unlike heads": (
        "qwen2.attention.head_count_kv",
        lambda writer: writer.add_head_count_kv([2, 4]),
        "qwen2.attention.head_count_kv is an array; expected one number for all layers",
    ),
    "more layers than tensors": (
        "qwen2.block_count",
        lambda writer: writer.add_block_count(10**9),
        "qwen2.block_count is 1000000000; expected fewer, as there are 26 tensors",
    ),
    "no heads": (
        "qwen2.attention.head_count",
        lambda writer: writer.add_head_count(0),
        "qwen2.attention.head_count is 0; expected a divisor of 64 features",
    ),
    "a layer too many": (
        "qwen2.block_count",
        lambda writer: writer.add_block_count(3),
        "lacks blk.2.attn_k.bias, blk.2.attn_k.weight, blk.2.attn_norm.weight",
    ),
    "a tensor too many": (
        "",
        lambda writer: writer.add_tensor("blk.0.extra.weight", np.ones(4, np.float32)),
        "also holds blk.0.extra.weight",
    ),
    "too few factors": (
        "",
        lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32)),
        "4 rotary frequencies have factors; expected 8",
    ),
    "tensors of another model": (
        "qwen2.feed_forward_length",
        lambda writer: writer.add_feed_forward_length(97),
        "has shape [96, 64]; the metadata says [97, 64]",
    ),
}


def said_otherwise(key, change):
    """What is to be told to a writer that has said all of a model."""

    def more(writer):
        for said in writer.kv_data:
            said.pop(key, None)
        change(writer)

    return more


@pytest.mark.parametrize(("key", "change", "words"), REFUSED.values(), ids=REFUSED)
def test_models_that_cannot_be_run(key, change, words, checkpoints, tmp_path):
    directory = checkpoints("qwen2").directory
    path = write_gguf(tmp_path / "model.gguf", directory, more=said_otherwise(key, change))
    with pytest.raises(InvalidConfiguration) as caught:
        logits(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_number_may_be_said_for_each_layer(checkpoints, tmp_path):
    more = said_otherwise(
        "qwen2.attention.head_count_kv", lambda writer: writer.add_head_count_kv([2, 2])
    )
    path = write_gguf(tmp_path / "model.gguf", checkpoints("qwen2").directory, more=more)
    assert read_model_spec(path).attention.kv_heads == 2


def test_all_that_is_said_of_the_rotary_embedding(checkpoints, tmp_path):
    def more(writer):
        writer.add_rope_dimension_count(8)
        writer.add_rope_scaling_attn_factors(0.5)
        writer.add_rope_scaling_yarn_beta_fast(16.0)
        writer.add_rope_scaling_yarn_beta_slow(2.0)

    directory = checkpoints("qwen2_yarn").directory
    path = write_gguf(tmp_path / "model.gguf", directory, more=more)
    rope = read_model_spec(path).rope
    assert rope.partial_factor == 0.5
    assert rope.scaling == YarnScaling(4.0, 64, 0.5 * (1 + 0.1 * math.log(4)), 16.0, 2.0)


def test_vectors_are_not_quantised(tmp_path):
    path = tmp_path / "one.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_tensor(
        "output_norm.weight", random_blocks(Type.Q8_0, (1, 64), 1)[0], raw_dtype=Type.Q8_0
    )
    finish(writer, path)
    with pytest.raises(InvalidConfiguration, match="is stored as Q8_0; expected F32, F16, BF16"):
        GgufWeights(path).check([TensorPart("model.norm.weight", (64,))], frozenset())


@pytest.mark.parametrize("name", ["llama_biased", "qwen2", "qwen3"])
def test_names_of_tensors_are_those_of_the_reference(name, checkpoints):
    spec = read_model_spec(checkpoints(name).directory)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, spec.layers)
    for part in all_parts(decoder_parts(spec)):
        known = names.get_name(part.name, (".weight", ".bias"))
        assert gguf_name(part.name) == known
        assert hugging_face_name(known) == part.name
