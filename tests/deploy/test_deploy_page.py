"""docs/deploy.md: every command of ours in it can be typed, and every file it names is there."""

import re
import shlex

import pytest

from tests.deploy.manifests import DEPLOY, parsed

ROOT = DEPLOY.parent
PAGE = (ROOT / "docs/deploy.md").read_text()
BLOCKS = re.findall(r"(?ms)^```console\n(.*?)^```", PAGE)
LINES = [
    line[2:].partition("  #")[0]
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("$ ")
]
OURS = [line for line in LINES if re.search(r"(^| )tandem (?!\.)", line) and "podman" not in line]


def test_there_are_commands_to_look_at():
    assert len(OURS) > 5
    assert len(LINES) > 12


@pytest.mark.parametrize("line", OURS)
def test_a_command_of_ours_can_be_typed(line):
    words = shlex.split(line)
    parsed(words[words.index("tandem") + 1 :])


def test_named_files_are_there():
    named = set(re.findall(r"deploy/[\w./-]+", PAGE)) | set(re.findall(r"\]\((\w+\.md)", PAGE))
    for name in named:
        place = ROOT / name if name.startswith("deploy/") else ROOT / "docs" / name
        assert place.exists(), name


def test_build_arguments_are_those_of_the_containerfile():
    text = (DEPLOY / "Containerfile").read_text()
    arguments = set(re.findall(r"(?m)^ARG (\w+)", text))
    assert set(re.findall(r"--build-arg (\w+)=", PAGE)) <= arguments
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", PAGE)) == arguments
