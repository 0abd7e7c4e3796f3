"""The wheel, built without a network from what the source archive holds: all that runs, and nothing
else."""

import base64
import csv
import email
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

from tests.supply.packages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What a build reads, and what else the archive has.
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
SOURCES = (*BUILT_FROM, "CHANGELOG.md", "Makefile", "constraints.txt", "training/README.md")
NAME = f"tandem-{PROJECT['version']}"
INFO = f"{NAME}.dist-info"
LAYS_OUT = "from docs.site.sources import lay_out; from pathlib import Path; lay_out(Path('laid'))"
BUILD = "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"


def packaged():
    """Every file of the package, by its place in the wheel."""
    source = ROOT / "src"
    files = (path for path in (source / "tandem").rglob("*") if path.is_file())
    return {
        path.relative_to(source).as_posix(): path
        for path in files
        if "__pycache__" not in path.parts
    }


def build(what, tree, out):
    """By the build backend itself: nothing is installed for it."""
    out.mkdir()
    command = [sys.executable, "-c", BUILD, what, str(out)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    tree = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        (tree / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    for folder in ("src/tandem", "docs", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "_build")
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    return build("build_sdist", tree, tree / "dist")


@pytest.fixture(scope="module")
def unpacked(archive, tmp_path_factory):
    tree = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as packed:
        packed.extractall(tree, filter="data")
    return tree / NAME


@pytest.fixture(scope="module")
def wheel(unpacked, tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "dist"
    with zipfile.ZipFile(build("build_wheel", unpacked, out)) as opened:
        yield opened


def files_in(tree):
    """Without what is made of them."""
    paths = [path.relative_to(tree) for path in tree.rglob("*") if path.is_file()]
    return {path.as_posix() for path in paths if not {"__pycache__", "_build"} & {*path.parts}}


def test_the_archive_has_no_tests_and_all_pages(unpacked):
    names = files_in(unpacked)
    assert {*SOURCES, *(f"docs/{name}" for name in files_in(ROOT / "docs"))} <= names
    others = [name for name in names if name.startswith(("bench", "training", "."))]
    assert others == ["training/README.md"]
    assert not [name for name in names if "/test_" in name]


def test_the_documentation_is_laid_out_from_the_archive(unpacked):
    """All is there that `make docs` gives to Sphinx."""
    done = subprocess.run(
        [sys.executable, "-c", LAYS_OUT], cwd=unpacked, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    laid = files_in(unpacked / "laid")
    assert {"index.md", "training.md", "reference/commands.md", "request.svg"} <= laid


def test_the_wheel_is_for_any_machine_and_holds_the_package(wheel):
    assert wheel.filename.endswith(f"{NAME}-py3-none-any.whl")
    digests = {
        name: digest
        for name, digest, _ in csv.reader(io.StringIO(wheel.read(f"{INFO}/RECORD").decode()))
    }
    assert set(digests) == set(wheel.namelist())
    for name, path in packaged().items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
        assert digests.pop(name, "") == f"sha256={digest.decode().rstrip('=')}", name
    told = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt"}
    assert set(digests) == {f"{INFO}/{name}" for name in (*told, "licenses/LICENSE")}


def test_what_runs_beside_the_code_is_in_it(wheel):
    names = set(wheel.namelist())
    for name in (
        "tandem/bundled/tandem-mini/model.safetensors",
        "tandem/bundled/tandem-mini-draft/tokenizer.json",
        "tandem/bundled/tandem-mini-medusa/model.safetensors",
        "tandem/bundled/clusters/demo.yaml",
        "tandem/bundled/hardware/devices/h100.yaml",
        "tandem/bundled/traces/chats-and-agents.jsonl.gz",
        "tandem/kernels/cpp/attention.cpp",
        "tandem/kernels/cpp/tile.h",
        "tandem/api/docs_page/page.html",
        "tandem/api/page/files/index.html",
        "tandem/api/page/files/app.js",
        "tandem/api/page/licences/uplot.txt",
        "tandem/report/files/report.html",
        "tandem/bench/tasks/data/tools.toml",
    ):
        assert name in names


def test_the_metadata_say_what_pyproject_says(wheel):
    told = email.message_from_string(wheel.read(f"{INFO}/METADATA").decode())
    assert (told["Name"], told["Version"]) == ("tandem", PROJECT["version"])
    assert (told["Requires-Python"], told["License-Expression"]) == (">=3.11", "Apache-2.0")
    extras = set(PROJECT["optional-dependencies"])
    assert set(told.get_all("Provides-Extra")) == extras
    needed = [each for each in told.get_all("Requires-Dist") if "extra ==" not in each]
    assert len(needed) == len(PROJECT["dependencies"])
    assert told.get_payload() == (ROOT / "README.md").read_text()
    command = wheel.read(f"{INFO}/entry_points.txt").decode()
    assert "tandem = tandem.__main__:main" in command
