"""The texts made from what is installed: constraints.txt and docs/licences.md."""

from tests.supply.packages import RUNTIME, Package, Project, closure

CONSTRAINTS_HEAD = """\
# The newest versions that the tests have passed with: `pip install -c constraints.txt` goes no
# further. Made by `make constraints`; what only other machines need (CUDA's packages, other
# systems) has no bound here. torch has the range of pyproject.toml, so that pip can take the build
# that suits the machine.
"""
LICENCES_HEAD = """\
# Licences

Tandem is under [Apache-2.0](../LICENSE). What it uses is installed beside it, unchanged.
`make constraints` writes this page from the packages' own metadata, and a test compares it with
what is installed and with the list of licences that are allowed.

Builds of torch for CUDA, and the extra `nixl` on machines with GPUs, bring packages of NVIDIA
(`nvidia-*`, under NVIDIA's own terms) and Triton (MIT); they are not listed here.

The page of a server holds lit-html 3.3.3 (BSD-3-Clause) and uPlot 1.6.32 (MIT), as their authors
publish them, with their licences beside it.
"""
TITLES = {RUNTIME: "Always installed"}
USED_FOR = {
    RUNTIME: "by `pip install tandem`",
    "bench": "plots",
    "client": "the client of OpenAI, to call a server from Python",
    "forecast": "forecasts of load by a library",
    "nixl": "KV over RDMA",
    "redis": "a tier or a shared pool in Redis",
    "ray": "workers on machines of Ray",
    "grpc": "the Open Inference Protocol over gRPC",
    "loadgen": "load by MLPerf's LoadGen (`tandem bench --loadgen`)",
    "otel": "traces of calls for OpenTelemetry",
    "test": "the tests; no part of a deployment",
    "lint": "checks of the source; no part of a deployment",
    "docs": "the documentation as a site (`make docs`); no part of a deployment",
}


def every_package(project: Project) -> dict[str, Package]:
    return closure(each for purpose in project.purposes.values() for each in purpose)


def constraints(project: Project) -> str:
    """One line a package: the installed version is the bound."""
    lines = [
        project.range_of("torch") if name == "torch" else f"{name}<={package.public_version}"
        for name, package in every_package(project).items()
    ]
    return CONSTRAINTS_HEAD + "".join(f"{line}\n" for line in lines)


def licences(project: Project) -> str:
    """A table a purpose; an extra's has what the runtime does not bring already."""
    text = LICENCES_HEAD
    runtime = closure(project.purposes[RUNTIME])
    for purpose, requirements in project.purposes.items():
        found = closure(requirements)
        if purpose != RUNTIME:
            found = {name: each for name, each in found.items() if name not in runtime}
        title = TITLES.get(purpose, f"Extra `{purpose}`")
        text += f"\n## {title}\n\nFor: {USED_FOR[purpose]}.\n\n| package | licence |\n|---|---|\n"
        text += "".join(f"| {name} | {package.licence} |\n" for name, package in found.items())
    return text
