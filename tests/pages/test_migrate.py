"""docs/migrate.md promises nothing that is not there: each name in a column of ours is looked up
where names of its kind are."""

import re
from dataclasses import fields, is_dataclass
from functools import cache
from typing import get_args, get_type_hints

import pytest
import typer
from typer.main import get_command

from tandem.commands.late_imports import VERBS
from tandem.commands.main import app
from tandem.config.cluster.file import Cluster
from tests.pages.commands import ROOT

PAGE = (ROOT / "docs/migrate.md").read_text()
SOURCE = ROOT / "src/tandem"


def columns_of_ours():
    """What tables have under `Tandem`, under `Tandem's …` and under `difference`."""
    for table in re.findall(r"(?m)(?:^\|.*\n)+", PAGE):
        head, _, *rows = [
            [cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()
        ]
        ours = [at for at, name in enumerate(head) if name.startswith(("Tandem", "difference"))]
        for row in rows:
            for at in ours:
                yield from re.findall(r"`([^`]+)`", row[at] if at < len(row) else "")


OURS = list(dict.fromkeys(columns_of_ours()))


@cache
def flags():
    group = get_command(app)
    context = typer.Context(group)
    return {
        option
        for verb in VERBS
        for parameter in group.get_command(context, verb).params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


@cache
def keys(shape=Cluster):
    """The dotted keys of a cluster file, without places in lists."""
    found = set()
    for entry in fields(shape):
        found.add(entry.name)
        parts = [get_type_hints(shape)[entry.name]]
        while parts:
            part = parts.pop()
            if is_dataclass(part):
                found |= {f"{entry.name}.{inner}" for inner in keys(part)}
            parts += get_args(part)
    return found


@cache
def source():
    return "\n".join(file.read_text() for file in sorted(SOURCE.rglob("*.py")))


def exists(name):
    if name.startswith("tandem "):
        return name.split()[1] in VERBS
    if name.startswith("--"):
        return name.partition(" ")[0] in flags()
    if name.startswith("/"):
        return f'"{name}"' in source()
    if name.startswith("tandem:") or name.endswith("_total"):
        # Counters get their ending from the library that shows them.
        bare = name.removeprefix("tandem:").removesuffix("_total")
        return f'"{bare}"' in source() or f'"{bare}_total"' in source()
    if (ROOT / name).exists():
        return True
    if ": " in name:
        key, _, value = name.partition(": ")
        return key in keys() | {each.rpartition(".")[2] for each in keys()} and (
            value.startswith("{") or f'"{value}"' in source()
        )
    if "." in name or "[" in name:
        return name.replace("[]", "") in keys()
    if name.isupper() or name in keys():
        return name in source()
    # A policy, one of its parameters, a connector, a field of a request.
    return f'"{name}"' in source() or re.search(rf"(?m)^ +{re.escape(name)}:", source())


def test_there_are_names_to_look_up():
    assert len([name for name in OURS if name.startswith("--")]) > 40
    assert len([name for name in OURS if name.startswith("tandem:")]) >= 8


@pytest.mark.parametrize("name", OURS)
def test_it_exists(name):
    assert exists(name)


@pytest.mark.parametrize(
    "name",
    [
        "--no-such-flag",
        "tandem fly",
        "/v1/nothing",
        "tandem:no_such_family_total",
        "policies.nothing",
    ],
)
def test_what_does_not_exist_is_found_out(name):
    assert not exists(name)
