"""Decoders read as encoders: against transformers, whatever they are batched with, and from the
files that people have of them."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from tandem.facts.encoder import LabelSpec, PoolingSpec
from tandem.facts.errors import InvalidConfiguration
from tandem.models.configuration import is_decoder
from tandem.models.encoders.load import load_decoder_encoder
from tests.models.encoders.batches import FP32, ragged, text_of, texts_of
from tests.models.tiny import SIZES

TOLERANCE = 3e-5
DECODERS = ("gemma", "llama_biased", "mistral_window", "qwen2", "qwen3", "qwen3_tied")


def load(directory, kernels, **options):
    return load_decoder_encoder(directory, FP32, kernels, **options)


@torch.inference_mode()
def states(oracle, text):
    return oracle.base_model(torch.tensor([text.token_ids])).last_hidden_state[0]


@pytest.mark.parametrize("name", DECODERS)
def test_vectors(checkpoints, kernels, name):
    checkpoint, texts = checkpoints(name), texts_of(1)
    assert is_decoder(checkpoint.directory)
    expected = [states(checkpoint.oracle, text) for text in texts]
    for mode, pooled in (
        ("mean", torch.stack([each.mean(0) for each in expected])),
        ("last", torch.stack([each[-1] for each in expected])),
    ):
        encoder = load(checkpoint.directory, kernels, pooling=PoolingSpec(mode))
        found = encoder.embed(ragged(texts))
        torch.testing.assert_close(found, pooled, atol=TOLERANCE, rtol=TOLERANCE)
    # Where nothing is said of pooling.
    found = load(checkpoint.directory, kernels).embed(ragged(texts))
    torch.testing.assert_close(found, normalize(pooled), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["mistral_window", "qwen3"])
def test_no_sequence_depends_on_its_company(checkpoints, native, name):
    encoder, chance = load(checkpoints(name).directory, native), random.Random(name)
    texts = texts_of(2, [chance.choice((1, 2, 15, 16, 17, 64, 90)) for _ in range(30)])
    together = encoder.embed(ragged(texts))
    alone = torch.cat([encoder.embed(ragged([text])) for text in texts])
    assert torch.equal(together, alone)


def headless(checkpoint, folder, architecture: str):
    """The same checkpoint as sentence-transformers saves it: without head and prefix."""
    config = json.loads((checkpoint.directory / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    tensors = load_file(checkpoint.directory / "model.safetensors")
    kept = {
        name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if name != "lm_head.weight"
    }
    save_file(kept, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen3Model"])
def test_files_without_a_head_are_read(checkpoints, kernels, tmp_path, architecture):
    checkpoint = checkpoints("qwen3")
    folder, texts = headless(checkpoint, tmp_path, architecture), texts_of(3)
    expected = load(checkpoint.directory, kernels).embed(ragged(texts))
    assert torch.equal(load(folder, kernels).embed(ragged(texts)), expected)


def test_what_is_missing_is_named(checkpoints, kernels, tmp_path):
    folder = headless(checkpoints("qwen3"), tmp_path, "Qwen3Model")
    tensors = load_file(folder / "model.safetensors")
    del tensors["norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidConfiguration, match=r"lacks norm\.weight"):
        load(folder, kernels)


def test_the_files_of_sentence_transformers_say_how_it_is_pooled(checkpoints, kernels, tmp_path):
    folder, text = headless(checkpoints("qwen3"), tmp_path, "Qwen3Model"), text_of(4, 20)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    found = load(folder, kernels).embed(ragged([text]))[0]
    expected = states(checkpoints("qwen3").oracle, text).mean(0)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A reranker of one label, and what transformers makes of it."""
    folder = tmp_path_factory.mktemp("classifier")
    options = {"num_key_value_heads": 2, "head_dim": 32, "num_labels": 1, "pad_token_id": 0}
    torch.manual_seed(3)
    model = Qwen3ForSequenceClassification(Qwen3Config(**SIZES, **options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return folder, model


def test_scores_of_labels(classifier, kernels):
    folder, oracle = classifier
    assert is_decoder(folder)
    encoder, texts = load(folder, kernels), texts_of(5)
    assert encoder.labels == LabelSpec(("LABEL_0",), "regression")
    with torch.inference_mode():
        expected = [oracle(torch.tensor([text.token_ids])).logits[0] for text in texts]
    found = encoder.scores(ragged(texts))
    torch.testing.assert_close(found, torch.stack(expected), atol=TOLERANCE, rtol=TOLERANCE)


def test_a_decoder_without_labels_has_no_scores(checkpoints, kernels):
    encoder = load(checkpoints("qwen3").directory, kernels)
    assert encoder.labels is None
    with pytest.raises(AssertionError):
        encoder.scores(ragged(texts_of(1)))
