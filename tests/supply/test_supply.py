"""What is installed is bounded and licensed as the files say."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.supply.packages import ROOT, RUNTIME, closure, is_allowed, project
from tests.supply.pages import every_package

BOUNDS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
]


def test_every_package_is_bounded_and_within_its_bound():
    bounds = {bound.name: bound.specifier for bound in BOUNDS}
    for name, package in every_package(project()).items():
        assert name in bounds, f"{name} is not in constraints.txt: make constraints"
        assert bounds[name].contains(Version(package.public_version), prereleases=True), name
    assert all(any(each.operator in ("<=", "<") for each in bound) for bound in bounds.values())


def test_torch_is_left_to_the_machine():
    assert project().range_of("torch") in (ROOT / "constraints.txt").read_text().splitlines()


def test_no_place_to_fetch_from_is_named():
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"://|--|@", text)


def test_everything_that_installs_for_users_and_tests_is_constrained():
    for path in ("Makefile", "deploy/Containerfile"):
        text = (ROOT / path).read_text().replace("\\\n", " ")
        # What renews the bounds is not held by them.
        held = re.sub(r"(?ms)^constraints:.*?\n\n", "", text)
        installs = [line for line in held.splitlines() if "pip install" in line and line[0] != "#"]
        assert installs
        assert all("--constraint constraints.txt" in line for line in installs), path


def test_every_licence_is_allowed():
    doubtful = [each for each in every_package(project()).values() if not is_allowed(each.licence)]
    assert not doubtful


def test_every_package_stands_on_the_page_with_its_licence():
    page = (ROOT / "docs" / "licences.md").read_text()
    tables = dict(re.findall(r"(?ms)^## (.+?)\n(.+?)(?=^## |\Z)", page))
    runtime = closure(project().purposes[RUNTIME])
    for purpose, requirements in project().purposes.items():
        table = tables["Always installed" if purpose == RUNTIME else f"Extra `{purpose}`"]
        for name, package in closure(requirements).items():
            if purpose == RUNTIME or name not in runtime:
                assert f"| {name} | {package.licence} |" in table, f"{name}: make constraints"


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("MIT AND Apache-2.0", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("LicenseRef-Proprietary", False),
        ("", False),
    ],
)
def test_what_is_allowed(licence, allowed):
    assert is_allowed(licence) is allowed


def test_every_file_beside_the_code_is_packaged():
    with (ROOT / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["setuptools"]["package-data"]["tandem"]
    package = ROOT / "src" / "tandem"
    packaged = {path for pattern in patterns for path in package.glob(pattern)}
    beside = {
        path
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and path.name != ".DS_Store"
    }
    assert not beside - packaged
