"""The Containerfile: what it copies is there, what it installs is what pyproject.toml names, and
the image is nobody's root."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.deploy.manifests import DEPLOY, parsed

ROOT = DEPLOY.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions():
    """Each as its word and the rest, lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", (DEPLOY / "Containerfile").read_text()).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [
        (word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in lines)
    ]


ALL = instructions()
FINAL = ALL[max(index for index, (word, _) in enumerate(ALL) if word == "FROM") :]


def rest_of(word, lines=ALL):
    return [rest for each, rest in lines if each == word]


def test_words_are_instructions_and_the_base_is_pinned():
    known = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "LABEL", "USER", "VOLUME", "EXPOSE"}
    assert {word for word, _ in ALL} == known | {"HEALTHCHECK", "ENTRYPOINT", "CMD"}
    (base,) = [rest for rest in rest_of("ARG") if rest.startswith("BASE=")]
    assert re.fullmatch(r"BASE=docker\.io/library/python:3\.\d+-slim-\w+", base)
    python = re.search(r"python:(3\.\d+)", base)[1]
    assert PROJECT["requires-python"] == f">={python}"


def test_everything_copied_is_there_and_not_ignored():
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    kept = {line[1:] for line in ignored if line.startswith("!")}
    sources = [
        source for rest in rest_of("COPY") if "--from" not in rest for source in rest.split()[:-1]
    ]
    assert set(sources) == kept
    assert all((ROOT / source).exists() for source in sources)
    # What the build reads is among them.
    assert {PROJECT["readme"], "pyproject.toml", "src"} <= kept


def test_torch_has_the_range_of_the_project():
    (torch,) = [each for each in PROJECT["dependencies"] if each.startswith("torch")]
    assert any(f'"{torch}"' in rest for rest in rest_of("RUN"))


def test_the_image_runs_as_a_user_without_rights():
    (user,) = rest_of("USER", FINAL)
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    assert f"--uid {user.partition(':')[0]}" in " ".join(rest_of("RUN", FINAL))
    words = [word for word, _ in FINAL]
    assert "RUN" not in words[words.index("USER") :]
    manifests = (DEPLOY / "kubernetes/workers.yaml").read_text()
    assert f"runAsUser: {user.partition(':')[0]}" in manifests


def test_no_secret_and_no_cache_stays_in_a_layer():
    text = (DEPLOY / "Containerfile").read_text()
    assert not re.search(r"(?i)(token|password|secret|api_key)\s*=", text)
    for rest in rest_of("RUN"):
        if "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert rest.endswith("rm -rf /var/lib/apt/lists/*")
    assert any("PIP_NO_CACHE_DIR=1" in rest for rest in rest_of("ENV"))


def test_the_commands_are_ours_and_the_check_asks_the_port_they_open():
    (command,) = [rest for word, rest in FINAL if word == "CMD"]
    words = [word.strip(' "') for word in command.strip("[]").split(",")]
    values = parsed(words)
    assert values["host"] == "0.0.0.0"
    (check,) = rest_of("HEALTHCHECK", FINAL)
    assert f":{values['port']}/health" in check
    assert rest_of("EXPOSE", FINAL) == [str(values["port"])]
    assert rest_of("ENTRYPOINT", FINAL) == ['["tandem"]']
    assert PROJECT["scripts"]["tandem"] == "tandem.__main__:main"


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "HF_HOME"])
def test_caches_lie_in_the_volume(name):
    (volume,) = rest_of("VOLUME", FINAL)
    (value,) = re.findall(rf"{name}=(\S+)", " ".join(rest_of("ENV", FINAL)))
    assert Path(value).is_relative_to(volume)
