"""What Tandem stands on: every package that its dependencies and extras bring, as installed here.

Reads pyproject.toml and the metadata of installed packages; nothing is asked of any server.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
RUNTIME = "runtime"
# What builds of torch for GPUs bring with them: other machines, other terms.
OF_THE_MACHINE = ("nvidia-", "cuda-", "triton")


@dataclass(frozen=True)
class Package:
    """`public_version` is without the name of a build, as `+cpu`."""

    name: str
    public_version: str
    licence: str


@dataclass(frozen=True)
class Project:
    """Requirements by purpose: `runtime` first, then the extras in the order of pyproject.toml."""

    purposes: Mapping[str, tuple[Requirement, ...]]

    def range_of(self, name: str) -> str:
        """A requirement of the runtime as it is written."""
        return next(str(each) for each in self.purposes[RUNTIME] if each.name == name)


def project() -> Project:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    purposes = {RUNTIME: table["dependencies"], **table["optional-dependencies"]}
    # Extras that an extra names are purposes of their own.
    return Project(
        {
            purpose: tuple(
                requirement
                for requirement in map(Requirement, written)
                if requirement.name != table["name"]
            )
            for purpose, written in purposes.items()
        }
    )


def closure(requirements: Iterable[Requirement]) -> dict[str, Package]:
    """These and all that they need here, but for what is `OF_THE_MACHINE`, by name. Raises
    `PackageNotFoundError` where one of them is not installed."""
    found: dict[str, Package] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name.startswith(OF_THE_MACHINE):
            continue
        installed = metadata.distribution(requirement.name)
        found[name] = Package(name, Version(installed.version).public, licence_of(installed))
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                waiting += [(Requirement(each), wanted) for each in installed.requires or ()]
    return dict(sorted(found.items()))


# How packages without an SPDX expression spell theirs.
SPELLINGS = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD",
    "bsd license": "BSD",
    "2-clause bsd": "BSD-2-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}

# Packages whose metadata says nothing of it; their sources do.
UNSTATED = {"mlcommons_loadgen": "Apache-2.0"}

# Packages whose metadata also names what only their source archives hold.
INSTALLED = {"docutils": "Public Domain AND BSD-2-Clause AND BSD-3-Clause"}


def licence_of(installed: metadata.Distribution) -> str:
    """As an SPDX expression where the package gives one or its words are known; else its words."""
    if licence := INSTALLED.get(installed.name):
        return licence
    about = installed.metadata.json
    if expression := about.get("license_expression"):
        return str(expression)
    written = str(about.get("license", "")).strip()
    if written and "\n" not in written:
        return SPELLINGS.get(written.lower(), written)
    kinds = (str(each) for each in about.get("classifier", ()))
    named = [each.rpartition(" :: ")[2] for each in kinds if each.startswith("License")]
    joined = " AND ".join(SPELLINGS.get(name.lower(), name) for name in named)
    return joined or UNSTATED.get(installed.name, "")


# May be used unchanged beside a program under Apache-2.0, and passed on with it.
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause",
    "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-CMU", "MPL-2.0", "PSF-2.0",
    "Public Domain", "Zlib",
}  # fmt: skip


def is_allowed(licence: str) -> bool:
    """Whether all that is joined by AND, and one of what is joined by OR, is on the list. What
    has parentheses is for a person to read."""
    ways = re.split(r"\s+OR\s+", licence)
    return any(all(each in ALLOWED for each in re.split(r"\s+AND\s+", way)) for way in ways)
