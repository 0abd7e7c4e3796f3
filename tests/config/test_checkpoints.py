"""The folder of a model, however a user names it."""

from pathlib import Path

import pytest

from tandem.config.checkpoints import check_model, find_checkpoint
from tandem.config.environment import BUNDLED_DRAFT, BUNDLED_MODEL, may_have_gpu
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration


@pytest.fixture(autouse=True)
def no_hub(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_bundled_models_have_names_that_need_no_hub():
    assert find_checkpoint(None, "main") == BUNDLED_MODEL
    assert find_checkpoint("tandem-mini", "main") == BUNDLED_MODEL
    assert find_checkpoint("tandem-mini-draft", "main") == BUNDLED_DRAFT


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_file_of_a_checkpoint_means_its_folder(file, monkeypatch):
    assert find_checkpoint(str(BUNDLED_DRAFT / file), "main") == BUNDLED_DRAFT
    monkeypatch.chdir(BUNDLED_DRAFT)
    assert find_checkpoint(file, "main") == BUNDLED_DRAFT


def test_what_is_near_a_bundled_name_is_told():
    with pytest.raises(InvalidConfiguration, match="did you mean tandem-mini"):
        find_checkpoint("tandem-mimi", "main")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_model_len": 1 << 20}, "max-model-len"),
        ({"kv_cache_memory": "lots"}, "kv-cache-memory"),
        ({"max_num_batched_tokens": 4}, "max-num-batched-tokens"),
        ({"cascade_model": "/no/such"}, "cascade-model"),
        ({"quantization": "int8", "dtype": "float16"}, "exclude each other"),
        pytest.param(
            {"device": "cuda"},
            "not available",
            marks=pytest.mark.skipif(may_have_gpu(), reason="there may be a GPU"),
        ),
    ],
)
def test_wishes_that_cannot_be_are_told_before_a_model_is_loaded(options, words):
    check_model("tandem-mini", ServeOptions())
    with pytest.raises(InvalidConfiguration, match=words):
        check_model("tandem-mini", ServeOptions(**options))


def test_a_folder_is_called_by_its_name_from_within(monkeypatch):
    monkeypatch.chdir(BUNDLED_DRAFT)
    for name in (".", ".."):
        assert find_checkpoint(name, "main") == Path(name).resolve()
