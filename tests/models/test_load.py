"""Checkpoints that do not fit are refused in one line, before any weight is read."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.facts.errors import InvalidConfiguration
from tandem.kernels.coding import code_rows
from tandem.kernels.faces import reference_kernels
from tandem.models.checkpoint import DummyWeights, SafetensorsWeights
from tandem.models.configuration import read_model_spec
from tandem.models.directory import find_model
from tandem.models.load import LoadPlan, load_decoder
from tandem.models.parameters import TensorPart, all_parts, decoder_parts
from tandem.models.weights import WeightForm
from tests.models.paging import Chunk, poisoned_store, run

FP32 = WeightForm("float32", torch.float32, torch.device("cpu"))
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load(directory, form=FP32, **plan):
    spec = read_model_spec(directory)
    return load_decoder(spec, LoadPlan(directory, form, **plan), reference_kernels())


@pytest.fixture
def copy_of(checkpoints, tmp_path):
    """A private copy of a checkpoint, to be spoilt."""

    def copy(name):
        return shutil.copytree(checkpoints(name).directory, tmp_path / name)

    return copy


def rewrite(directory, **changes):
    """Replaces tensors of a single-file checkpoint; None removes one."""
    tensors = load_file(directory / SINGLE)
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, directory / SINGLE)


def refusal(directory):
    with pytest.raises(InvalidConfiguration) as caught:
        load(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_sharded_checkpoint_has_several_files(checkpoints):
    directory = checkpoints("llama2_sharded").directory
    assert len(list(directory.glob("*.safetensors"))) > 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model__norm__weight": None, "lm_head__weight": None},
            "lacks lm_head.weight, model.norm.weight;",
        ),
        (
            {"model__layers__0__self_attn__q_proj__bias": torch.zeros(64)},
            "also holds model.layers.0.self_attn.q_proj.bias;",
        ),
        (
            {f"extra{index}": torch.zeros(1) for index in range(9)},
            "extra0, extra1, extra2, extra3 and 5 more",
        ),
        (
            {"model__norm__weight": torch.ones(63)},
            "model.norm.weight has shape [63]; config.json says [64]",
        ),
        (
            {"model__layers__1__mlp__up_proj__weight": torch.zeros(96, 64, dtype=torch.int8)},
            "stored as torch.int8",
        ),
    ],
    ids=["missing", "extra", "many names are abridged", "misshaped", "quantised"],
)
def test_tensors_that_do_not_fit(copy_of, changes, words):
    directory = copy_of("llama3")
    rewrite(directory, **changes)
    assert words in refusal(directory)


def test_cut_short_file(copy_of):
    directory = copy_of("llama3")
    content = (directory / SINGLE).read_bytes()
    (directory / SINGLE).write_bytes(content[: len(content) // 2])
    assert "cannot be read as safetensors" in refusal(directory)


def test_missing_shard(copy_of):
    directory = copy_of("llama2_sharded")
    sorted(directory.glob("*.safetensors"))[1].unlink()
    assert "cannot be read" in refusal(directory)


@pytest.mark.parametrize("file_name", ["../evil.safetensors", "/etc/passwd", 7])
def test_an_index_names_files_of_its_directory_only(copy_of, file_name):
    directory = copy_of("llama2_sharded")
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = file_name
    (directory / INDEX).write_text(json.dumps(index))
    assert "expected the name of a file beside the index" in refusal(directory)


def test_an_index_that_lies(copy_of):
    directory = copy_of("llama2_sharded")
    index = json.loads((directory / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    other = next(name for name in files if name != index["weight_map"]["lm_head.weight"])
    index["weight_map"]["lm_head.weight"] = other
    (directory / INDEX).write_text(json.dumps(index))
    assert "lm_head.weight cannot be read" in refusal(directory)


def test_no_weights_and_pickles(copy_of):
    directory = copy_of("llama3")
    (directory / SINGLE).unlink()
    torch.save({}, directory / "pytorch_model.bin")
    assert "must be converted to safetensors" in refusal(directory)


def test_derived_and_tied_tensors_are_ignored(copy_of):
    directory = copy_of("llama3_tied")
    rewrite(
        directory,
        lm_head__weight=torch.zeros(199, 64),
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8),
    )
    load(directory)


def test_a_tied_head_shares_the_embedding(checkpoints):
    tied = load(checkpoints("llama3_tied").directory)
    assert tied.weights.embedding is None
    assert tied.weights.bytes == 4 * sum(
        torch.Size(part.shape).numel()
        for part in all_parts(decoder_parts(tied.spec))
        if len(part.shape) == 2
    )
    int8 = load(
        checkpoints("llama3_tied").directory,
        WeightForm("int8", torch.float32, torch.device("cpu")),
    )
    assert int8.weights.embedding.dtype is torch.bfloat16
    assert int8.weights.head.weight.dtype is torch.uint8


@pytest.mark.parametrize("narrow", ["qkv", "q"])
def test_codes_are_of_values_as_they_are_stored(copy_of, narrow):
    """Whether the parts of a fused matrix have one type or several."""
    directory = copy_of("llama3")
    names = [f"model.layers.0.self_attn.{each}_proj.weight" for each in "qkv"]
    parts = load_file(directory / SINGLE)
    stored = {name: parts[name].float() for name in names}
    for name, part in zip(names, "qkv", strict=True):
        if part in narrow:
            stored[name] = stored[name].to(torch.bfloat16)
    rewrite(directory, **stored)
    int8 = load(directory, WeightForm("int8", torch.float32, torch.device("cpu")))
    wanted = code_rows(torch.cat([stored[name].float() for name in names]))
    assert torch.equal(int8.weights.layers[0].qkv.weight, wanted.codes)


def test_weights_outlive_their_files(copy_of):
    directory = copy_of("llama3")
    decoder = load(directory)
    before = decoder.weights.layers[0].down.weight.clone()
    with (directory / SINGLE).open("r+b") as file:
        file.write(b"\0" * (directory / SINGLE).stat().st_size)
    assert torch.equal(decoder.weights.layers[0].down.weight, before)


def test_the_parts_are_what_transformers_writes(checkpoints):
    for name in ("llama_biased", "qwen2", "qwen3", "llama2_sharded"):
        directory = checkpoints(name).directory
        parts = all_parts(decoder_parts(read_model_spec(directory)))
        assert len({part.name for part in parts}) == len(parts)
        with SafetensorsWeights(directory) as checkpoint:
            checkpoint.check(parts, frozenset())
            for part in parts:
                assert tuple(checkpoint.read(part).shape) == part.shape


def test_parts_split_where_the_arithmetic_allows(checkpoints):
    parts = decoder_parts(read_model_spec(checkpoints("llama_biased").directory))
    layer = parts.layers[0]
    assert [part.split_axis for part in layer.qkv.weights + layer.qkv.biases] == [0] * 6
    assert {part.split_unit for part in layer.qkv.weights} == {16}
    for summed in (layer.attention_output, layer.down):
        assert [part.split_axis for part in summed.weights] == [1]
        assert [part.split_axis for part in summed.biases] == [None]


def test_dummy_weights_need_only_a_config(copy_of):
    directory = copy_of("qwen3")
    (directory / SINGLE).unlink()
    first = load(directory, load_format="dummy", seed=3)
    again = load(directory, load_format="dummy", seed=3)
    other = load(directory, load_format="dummy", seed=4)
    chunk = Chunk(list(range(12)), [0, 1, 2], 0, 12)
    logits = [run(decoder, poisoned_store(decoder, 3), chunk) for decoder in (first, again, other)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
    assert 0.5 < logits[0].std() < 2


def test_dummy_tensors_differ_by_name():
    source = DummyWeights()
    shape = (32, 32)
    assert not torch.equal(
        source.read(TensorPart("a.weight", shape)), source.read(TensorPart("b.weight", shape))
    )


def test_a_shorter_context_makes_a_shorter_table(checkpoints):
    directory = checkpoints("llama_yarn").directory
    spec = replace(read_model_spec(directory), context_tokens=48)
    decoder = load_decoder(spec, LoadPlan(directory, FP32), reference_kernels())
    chunk = Chunk(list(range(48)), list(range(12)), 0, 48)
    found = run(decoder, poisoned_store(decoder, 12), chunk)
    with torch.inference_mode():
        expected = checkpoints("llama_yarn").oracle(torch.arange(48)[None]).logits[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_finds_a_directory(tmp_path):
    assert find_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["/no/such/place", "./nowhere", "a/b/c"])
def test_a_mistyped_path(name):
    with pytest.raises(InvalidConfiguration, match="is no directory"):
        find_model(name)


@pytest.mark.parametrize("file", ["config.json", SINGLE, "model-00001-of-00002.safetensors", INDEX])
def test_a_file_of_a_checkpoint_is_understood_as_its_folder(tmp_path, file):
    (tmp_path / file).touch()
    assert find_model(str(tmp_path / file)) == tmp_path


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("pytorch_model.bin", "is a file; give the folder"),
        ("tokenizer.json", "is a file; give the folder"),
    ],
)
def test_another_file_is_no_model(tmp_path, file, words):
    (tmp_path / file).touch()
    with pytest.raises(InvalidConfiguration, match=words):
        find_model(str(tmp_path / file))


@pytest.mark.parametrize("name", ["model.safetensors", "x.gguf", "some/config.json"])
def test_a_file_that_is_not_there_is_no_name_on_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfiguration, match="is no directory and no GGUF file"):
        find_model(name)


@pytest.mark.parametrize("name", ["nobody/nothing-at-all", "not a name!"])
def test_a_name_that_the_hub_cannot_give(name, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidConfiguration, match="neither a directory nor") as caught:
        find_model(name)
    assert "\n" not in str(caught.value)
