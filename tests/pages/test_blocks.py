"""Code of the pages beside commands: cluster files are read by their reader, JSON parses, and what
is called Python is. What asks a server is run in `test_running.py`."""

import ast
import json

import pytest
import yaml

from tandem.config.cluster.file import cluster_of
from tandem.config.options import read_options
from tests.pages.blocks import Block, blocks_of
from tests.pages.commands import PAGES

# What a fragment of a cluster file leaves out.
REST = {
    "model": "tandem-mini",
    "pools": "[{name: a, role: prefill, device: cpu}, {name: b, role: decode, device: cpu}]",
}
OTHERS = {"deploy.md": "resources", "serving.md": "served-model-name"}
ALL = [block for page in PAGES for block in blocks_of(page)]


def of_language(language: str) -> list[Block]:
    return [each for each in ALL if each.language == language]


@pytest.mark.parametrize("block", of_language("yaml"), ids=str)
def test_cluster_files_are_read_by_their_reader(block, tmp_path):
    keys = yaml.safe_load(block.text)
    if OTHERS.get(block.page.name) in keys:
        return
    missing = "".join(f"{key}: {value}\n" for key, value in REST.items() if key not in keys)
    # A profile that the reader makes on a machine of the kind.
    fitted = {"fitted": {"fixed_s": 0.012, "token_s": 0.0003, "decode_s": 0.0002}}
    (tmp_path / "h100.json").write_text(json.dumps(fitted))
    assert cluster_of(yaml.compose(missing + block.text), tmp_path)


def test_options_of_a_server_are_read_by_their_reader(tmp_path):
    (block,) = [each for each in of_language("yaml") if OTHERS["serving.md"] in each.text]
    (tmp_path / "serve.yaml").write_text(block.text)
    assert read_options(tmp_path / "serve.yaml", {}).port == yaml.safe_load(block.text)["port"]


@pytest.mark.parametrize("block", of_language("json"), ids=str)
def test_json_parses(block):
    assert json.loads(block.text)


@pytest.mark.parametrize("block", of_language("python"), ids=str)
def test_python_parses(block):
    assert ast.parse(block.text).body


def test_there_are_blocks_to_look_at():
    assert {each.language for each in ALL} >= {"yaml", "json", "python", "console"}
    assert len(of_language("yaml")) > 15
