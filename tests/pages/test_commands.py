"""What the pages tell people to type can be typed, and what it names is there or is made by another
command of theirs."""

import re
import tomllib
from pathlib import Path

import pytest

from tandem.config.cluster.file import bundled_clusters
from tandem.config.traces import RECORDED, bundled_traces
from tests.deploy.manifests import parsed
from tests.pages.commands import ALL, ROOT

# What their readers write themselves.
OWN_CLUSTERS = {"my-cluster.yaml", "lab.yaml", "cluster.yaml"}
OURS = [command for command in ALL if command.program == "tandem"]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def named(*programs):
    return [command for command in ALL if command.program in programs]


def made_files():
    """What other commands of the pages download or write."""
    for command in ALL:
        words = command.words
        if command.program == "curl" and "-LO" in words:
            yield Path(words[-1]).name
        for option in ("--draw", "-cJf"):
            if option in words:
                yield words[words.index(option) + 1]


def test_there_are_commands_to_look_at():
    assert len(OURS) > 50
    assert len([command for command in OURS if command.page.name == "README.md"]) > 10


@pytest.mark.parametrize("command", OURS, ids=lambda each: f"{each.page.name}: {each.text[:60]}")
def test_a_command_of_ours_can_be_typed(command):
    values = parsed(list(command.words[1:]))
    traces = values.get("trace") or []
    for trace in traces if isinstance(traces, list) else [traces]:
        assert str(trace) in {*bundled_traces(), *made_files()}, trace
    clusters = values.get("clusters") or [values.get("cluster") or str(values.get("file"))]
    for cluster in clusters if command.words[1] in ("simulate", "up", "apply") else ():
        assert cluster in {*bundled_clusters(), *OWN_CLUSTERS}, cluster


def test_scripts_and_targets_are_there():
    for command in named("python", "python3"):
        script = next((word for word in command.words if word.endswith(".py")), None)
        assert script is None or (ROOT / script).exists(), command.text
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    for command in named("make"):
        assert {word for word in command.words[1:] if "=" not in word} <= targets, command.text


def test_extras_are_those_of_the_project():
    installs = [command.text for command in named("pip", "pipx")]
    wanted = [re.search(r"(?:^|/|\s)(?:\.|tandem\S*)\[([\w,]+)\]", text) for text in installs]
    extras = {extra for found in wanted if found for extra in found[1].split(",")}
    assert {"client", "bench", "ray"} <= extras <= set(EXTRAS)


def test_the_readme_installs_what_its_python_imports():
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for text in (readme, makefile):
        assert "'.[client,bench]'" in text
    assert any(each.startswith("openai") for each in EXTRAS["client"])
    assert "from openai import" in readme


def test_recorded_traces_are_told_with_their_licence():
    page = (ROOT / "docs/traces.md").read_text()
    for each in RECORDED:
        assert each.url.startswith("https://")
        assert Path(each.url).name in page and each.licence in page
