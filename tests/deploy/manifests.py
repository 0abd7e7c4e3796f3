"""The manifests of deploy/ as Python objects, and what tests ask of all of them."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer
import yaml
from typer.main import get_command

from tandem.commands.main import app

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES, KUBERAY = DEPLOY / "kubernetes", DEPLOY / "kuberay"
MONITORING = KUBERNETES / "monitoring"

Fields = Mapping[str, tuple[type, bool]]
"""Of an object that no package has a schema of: the type of each, and whether it must be there."""


@functools.cache
def documents(file: Path) -> tuple[dict, ...]:
    """All objects in a file."""
    return tuple(yaml.safe_load_all(file.read_text()))


def listed(folder: Path) -> list[Path]:
    """The files that a kustomization applies."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    return [folder / name for name in kustomization["resources"]]


def of_kind(kind: str, *folders: Path) -> list[dict]:
    return [
        document
        for folder in folders
        for file in listed(folder)
        for document in documents(file)
        if document["kind"] == kind
    ]


def pod_templates(node: object) -> Iterator[dict]:
    """Every pod template within an object, wherever it lies."""
    if isinstance(node, dict):
        if "containers" in (node.get("template") or {}).get("spec", {}):
            yield node["template"]
        for value in node.values():
            yield from pod_templates(value)
    elif isinstance(node, list):
        for value in node:
            yield from pod_templates(value)


def check_fields(written: dict, fields: Fields) -> None:
    """It has no others, and each is of its type."""
    assert set(written) <= set(fields)
    for name, (kind, needed) in fields.items():
        assert name in written or not needed, name
        assert name not in written or type(written[name]) is kind, name


def parsed(words: list[str]) -> dict:
    """The values of a `tandem` command line, which the real command line takes apart. Raises
    what click raises for one that cannot be."""
    group = get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    command = group.get_command(typer.Context(group), words[0])
    assert command is not None, words[0]
    return command.make_context(words[0], words[1:]).params
