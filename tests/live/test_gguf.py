"""A GGUF file served in one process answers as the checkpoint that it was made of."""

import asyncio

import pytest

from tandem.config.environment import BUNDLED_MODEL
from tandem.config.hardware.worker import load_model_shape
from tandem.config.options import read_options
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.live.processes.server import assemble, running
from tandem.models.merging import merge_adapter
from tests.models.bundled_gguf import write_bundled

OPTIONS = {"threads": 1, "max_num_seqs": 2, "kv_cache_memory": "64MiB", "max_model_len": 512}
GREEDY = SamplingParameters(temperature=0.0, max_tokens=12, top_logprobs=2)


async def answers(model: str, **flags: object):
    """Of two requests, tokens with their log-probabilities; and the server."""
    server = assemble(model, read_options(None, {**OPTIONS, **flags}))
    prompts = [server.text.tokenizer.encode(text, add_special_tokens=True) for text in ("Hi", "3+")]

    async def ask(number: int):
        request = Request(f"r-{number}", prompts[number], GREEDY)
        outputs = [output async for output in server.worker.generate(request)]
        return [each for output in outputs for each in output.logprobs]

    async with running(server):
        return await asyncio.gather(ask(0), ask(1)), server


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_bundled(tmp_path_factory.mktemp("gguf") / "mini-BF16.gguf")


async def test_a_file_answers_as_its_checkpoint(path):
    found, server = await answers(str(path))
    expected, original = await answers(str(BUNDLED_MODEL))
    assert found == expected
    assert server.worker.card.names == ("mini-BF16",)
    assert server.worker.card.end_token_ids == original.worker.card.end_token_ids


async def test_a_file_drafts_for_a_checkpoint(path):
    flags = {"speculation": "draft", "speculation_model": str(path)}
    found, _ = await answers(str(BUNDLED_MODEL), **flags)
    expected, _ = await answers(str(BUNDLED_MODEL))
    assert found == expected


def test_a_file_has_the_shape_of_its_checkpoint(path):
    shape = load_model_shape(str(path))
    assert shape.label == "mini-BF16"
    assert shape.parameters == load_model_shape(str(BUNDLED_MODEL)).parameters


def test_a_file_is_not_merged_with(path, tmp_path):
    with pytest.raises(InvalidConfiguration, match="is a GGUF file, which is served as a model"):
        merge_adapter(path, tmp_path, tmp_path / "out")


def test_a_file_is_no_encoder(path):
    options = read_options(None, {**OPTIONS, "encoder_models": (f"e={path}",)})
    with pytest.raises(InvalidConfiguration, match=r"e: .*is a GGUF file, which is served"):
        assemble(str(BUNDLED_MODEL), options)
