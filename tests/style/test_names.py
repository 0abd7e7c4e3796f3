"""Names that say nothing, and what only few files may do: touch the world, catch everything.

How long a file or how wide a class may be is for its reader to judge, not for a counter.
"""

import ast
import re

import pytest

from tests.style.source import ROOT, modules

EMPTY_FILE_NAMES = {"utils", "util", "common", "misc", "helpers", "helper", "types"}
EMPTY_CLASS_NAMES = re.compile(r"(Manager|Helper|Util|Utils|Base|Impl|Mixin)$")
PRIVATE_PLACES = re.compile(r"(?<![\w.~])/(home|root)/")
# One file of each kind touches the world. The measuring side has a stopwatch of its own.
OWNERS = {
    "clock": (re.compile(r"\btime\.(time|monotonic|perf_counter)"), {"api", "live", "bench"}),
    "environment": (re.compile(r"\bos\.(environ|getenv)"), {"config", "kernels"}),
    "entropy": (re.compile(r"\b(secrets\.|os\.urandom|uuid\.uuid)"), {"api"}),
}


def test_files_say_what_they_are():
    offenders = []
    for module in modules():
        if module.path.stem in EMPTY_FILE_NAMES:
            offenders.append(f"{module.name}: an empty name")
        if module.tree.body and not ast.get_docstring(module.tree):
            offenders.append(f"{module.name} does not say what it is for")
    assert not offenders


def test_classes_have_names_that_say_something():
    offenders = [
        f"{module.name}:{node.name}"
        for module in modules()
        for node in module.classes()
        if EMPTY_CLASS_NAMES.search(node.name)
    ]
    assert not offenders


def test_one_supervisor_catches_everything():
    broad = []
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler):
                named = ast.unparse(node.type) if node.type else "everything"
                if named in ("Exception", "BaseException", "everything"):
                    broad.append(module.name)
    assert broad == ["src/tandem/kv/threads.py"]


@pytest.mark.parametrize("kind", OWNERS)
def test_one_file_a_room_touches_the_world(kind):
    pattern, rooms = OWNERS[kind]
    touching = [module for module in modules() if pattern.search(module.path.read_text())]
    assert {module.room for module in touching} <= rooms
    for room in rooms:
        assert len([module for module in touching if module.room == room]) <= 1


def test_no_unfinished_work_and_no_private_places():
    for folder in ("src", "training", "bench", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md", ".cpp", ".h"}:
                text = path.read_text()
                assert not re.search(r"\b(TODO|FIXME|XXX)\b|NotImplementedError", text), path
                assert not PRIVATE_PLACES.search(text), path
