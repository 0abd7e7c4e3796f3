"""What encoders' files say, and that those which do not fit are refused in one line."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.facts.encoder import PoolingSpec
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import YarnScaling
from tandem.kernels.faces import reference_kernels
from tandem.models.directory import Fields
from tandem.models.encoders.configuration import parse_encoder_spec, read_encoder_spec
from tandem.models.encoders.encoder import Encoder
from tandem.models.encoders.load import load_encoder
from tandem.models.encoders.sentence_files import read_pooling
from tandem.models.weights import WeightForm
from tests.models.encoders.batches import CPU, FP32, load, ragged, texts_of

SINGLE = "model.safetensors"
FOLDERS = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize", "Dense": ""}
TRANSFORMER, POOLING, NORMALIZE, DENSE = (
    {"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in FOLDERS.items()
)


@pytest.fixture
def copy_of(encoders, tmp_path):
    """A private copy of a checkpoint, to be changed."""

    def copy(name):
        return shutil.copytree(encoders(name).directory, tmp_path / name)

    return copy


def load_from(directory, form=FP32) -> Encoder:
    return load_encoder(directory, form, reference_kernels())


def rewrite(directory, renamed):
    """Tensors under what `renamed` makes of their names; None drops one."""
    tensors = load_file(directory / SINGLE)
    kept = {renamed(name): tensor for name, tensor in tensors.items() if renamed(name)}
    save_file(kept, directory / SINGLE)


def reconfigure(directory, **changes):
    config = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(config))


def write_modules(directory, *modules, **pooling):
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def refusal(read, *arguments):
    with pytest.raises(InvalidConfiguration) as caught:
        read(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("bert", lambda name: f"bert.{name}"),
        ("xlm_roberta", lambda name: f"roberta.{name}"),
        ("modernbert", lambda name: f"model.{name}"),
        ("bert_words", lambda name: name.removeprefix("bert.")),
        ("bert", lambda name: None if name.startswith("pooler.") else name),
        (
            "bert",
            lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ),
        ),
    ],
    ids=["bert.", "roberta.", "model.", "no prefix", "no pooler", "gamma and beta"],
)
def test_other_names_of_the_same_tensors(encoders, copy_of, name, renamed):
    directory, batch = copy_of(name), ragged(texts_of(1))
    before = load(encoders(name), reference_kernels()).embed(batch)
    rewrite(directory, renamed)
    assert torch.equal(load_from(directory).embed(batch), before)


def test_derived_tensors_are_ignored(copy_of):
    directory = copy_of("bert")
    tensors = load_file(directory / SINGLE) | {"embeddings.position_ids": torch.arange(96)[None]}
    save_file(tensors, directory / SINGLE)
    load_from(directory)


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("bert", {"encoder.layer.0.output.dense.bias": None}, "lacks encoder.layer.0.output"),
        ("bert", {"classifier.weight": torch.zeros(2, 64)}, "also holds classifier.weight"),
        ("modernbert", {"final_norm.bias": torch.zeros(64)}, "also holds final_norm.bias"),
        ("bert_labels", {"bert.pooler.dense.weight": None}, "lacks bert.pooler.dense.weight"),
        (
            "roberta_labels",
            {"classifier.out_proj.weight": torch.zeros(5, 64)},
            "has shape [5, 64]; config.json says [2, 64]",
        ),
    ],
)
def test_tensors_that_do_not_fit(copy_of, name, changed, words):
    directory = copy_of(name)
    tensors = load_file(directory / SINGLE) | changed
    save_file({k: v for k, v in tensors.items() if v is not None}, directory / SINGLE)
    assert words in refusal(load_from, directory)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("bert", {"architectures": ["T5EncoderModel"]}, "'T5EncoderModel' is no supported encoder"),
        ("bert", {"architectures": ["BertForQuestionAnswering"]}, "is no supported encoder"),
        ("bert", {"hidden_act": "relu"}, "hidden_act is 'relu'; expected gelu"),
        ("bert", {"hidden_act": "gelu_new"}, "expected gelu"),
        ("bert", {"position_embedding_type": "relative_key"}, "expected absolute"),
        ("bert", {"is_decoder": True}, "is_decoder is set"),
        ("roberta", {"add_cross_attention": True}, "cannot run cross attention"),
        ("bert", {"quantization_config": {"bits": 4}}, "quantised checkpoints"),
        ("bert", {"num_attention_heads": 7}, "a multiple of num_attention_heads"),
        ("roberta", {"max_position_embeddings": 2}, "more than 2"),
        ("bert", {"vocab_size": None}, "vocab_size is missing"),
        ("modernbert", {"hidden_activation": "silu"}, "hidden_activation is 'silu'; expected gelu"),
        ("modernbert", {"layer_types": ["full_attention"]}, "3 entries of"),
        ("modernbert_labels", {"classifier_pooling": "max"}, "expected cls or mean"),
        ("modernbert_labels", {"classifier_activation": "relu"}, "expected gelu"),
        ("bert_labels", {"problem_type": "ranking"}, "problem_type is 'ranking'"),
        ("bert_labels", {"id2label": {"1": "a", "2": "b"}}, "a text for each number from 0 on"),
    ],
)
def test_configurations_that_cannot_run(copy_of, name, changes, words):
    directory = copy_of(name)
    reconfigure(directory, **changes)
    assert words in refusal(load_from, directory)


def test_heads_are_described(encoders):
    def head(name):
        return read_encoder_spec(encoders(name).directory).head

    assert head("bert") is None
    assert head("bert_labels").scored.labels == ("no", "maybe", "yes")
    assert head("bert_labels").scored.problem == "multi_label_classification"
    assert head("roberta_labels").scored.labels == ("LABEL_0", "LABEL_1")
    assert head("roberta_labels").scored.problem == "single_label_classification"
    assert head("xlm_roberta_score").scored.problem == "regression"
    assert head("modernbert_labels").pooling == "cls"
    assert head("modernbert_mean").pooling == "mean"


# As transformers 4 wrote it: thetas as fields of their own, no types of layers.
OLD_MODERNBERT = {
    "architectures": ["ModernBertForMaskedLM"],
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "intermediate_size": 1152,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "vocab_size": 50368,
}


def test_the_old_spelling_of_a_modernbert():
    spec = parse_encoder_spec(Fields("config.json", OLD_MODERNBERT))
    assert [layer.reach_tokens for layer in spec.attention[:5]] == [None, 64, 64, None, 64]
    assert [layer.rope.theta for layer in spec.attention[:2]] == [160_000.0, 10_000.0]
    scaling = {"rope_type": "yarn", "factor": 2.0}
    stretched = parse_encoder_spec(
        Fields("config.json", OLD_MODERNBERT | {"rope_scaling": scaling})
    )
    assert all(isinstance(layer.rope.scaling, YarnScaling) for layer in stretched.attention)


def test_a_model_type_alone():
    config = {k: v for k, v in OLD_MODERNBERT.items() if k != "architectures"}
    for model_type, family in (("modernbert", "modernbert"), ("xlm-roberta", "roberta")):
        found = parse_encoder_spec(Fields("config.json", config | {"model_type": model_type}))
        assert found.family == family


@pytest.mark.parametrize(
    ("modules", "pooling", "expected"),
    [
        ((TRANSFORMER, POOLING), {"pooling_mode_cls_token": True}, PoolingSpec("cls")),
        (
            (TRANSFORMER, POOLING, NORMALIZE),
            {
                "pooling_mode_cls_token": False,
                "pooling_mode_mean_tokens": True,
                "pooling_mode_max_tokens": False,
                "include_prompt": True,
            },
            PoolingSpec("mean", normalised=True),
        ),
        ((TRANSFORMER, POOLING), {"pooling_mode_lasttoken": True}, PoolingSpec("last")),
        ((TRANSFORMER, POOLING), {"pooling_mode": "cls"}, PoolingSpec("cls")),
    ],
)
def test_pooling_of_sentence_transformers(tmp_path, modules, pooling, expected):
    write_modules(tmp_path, *modules, **pooling)
    assert read_pooling(tmp_path) == expected


@pytest.mark.parametrize(
    ("modules", "pooling", "words"),
    [
        ((TRANSFORMER, POOLING, DENSE), {"pooling_mode": "cls"}, "Pooling or Normalize"),
        ((POOLING,), {"pooling_mode_max_tokens": True}, "max_tokens is not supported"),
        ((POOLING,), {"pooling_mode": "weightedmean"}, "weightedmean is not supported"),
        ((POOLING,), {"embedding_dimension": 64}, "no mode is not supported"),
        (
            (POOLING,),
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "cls_token and mean_tokens is not supported",
        ),
        ((POOLING,), {"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
        ((POOLING | {"path": "../1_Pooling"},), {"pooling_mode": "mean"}, "name of a folder"),
        ((POOLING | {"path": "2_Pooling"},), {"pooling_mode": "mean"}, "does not exist"),
    ],
)
def test_pooling_that_is_not_supported(tmp_path, modules, pooling, words):
    write_modules(tmp_path, *modules, **pooling)
    assert words in refusal(read_pooling, tmp_path)


def test_modules_that_are_no_list(tmp_path):
    (tmp_path / "modules.json").write_text("{}")
    assert "holds no list" in refusal(read_pooling, tmp_path)


def test_an_encoder_pools_as_its_files_say(copy_of):
    directory, batch = copy_of("bert"), ragged(texts_of(2))
    means = load_from(directory).embed(batch)
    assert load_from(directory).pooling == PoolingSpec("mean")
    write_modules(directory, TRANSFORMER, POOLING, NORMALIZE, pooling_mode_cls_token=True)
    encoder = load_from(directory)
    assert encoder.pooling == PoolingSpec("cls", normalised=True)
    assert not torch.allclose(encoder.embed(batch), means)
    asked = load_encoder(directory, FP32, reference_kernels(), pooling=PoolingSpec("mean"))
    assert torch.equal(asked.embed(batch), means)


def test_texts_are_as_long_as_the_files_say(copy_of):
    directory = copy_of("bert")
    assert read_encoder_spec(directory).context_tokens == 96
    for longest, expected in ((48, 48), (512, 96), (None, 96)):
        content = json.dumps({"max_seq_length": longest, "do_lower_case": False})
        (directory / "sentence_bert_config.json").write_text(content)
        assert read_encoder_spec(directory).context_tokens == expected


@pytest.mark.parametrize("storage", ["bfloat16", "int8"])
def test_narrow_storage_is_near(encoders, storage):
    directory, batch = encoders("bert_labels").directory, ragged(texts_of(3))
    narrow = load_from(directory, WeightForm(storage, torch.float32, CPU))
    whole = load_from(directory)
    for found, exact in (
        (narrow.embed(batch), whole.embed(batch)),
        (narrow.scores(batch), whole.scores(batch)),
    ):
        assert not torch.equal(found, exact)
        assert torch.nn.functional.cosine_similarity(found.flatten(), exact.flatten(), 0) > 0.99
