"""The tails that make a codebase ugly: long files, long functions, wide classes, empty names.

`EXCEPTIONS` may only shrink.
"""

import ast
import re

import pytest

from tests.style.source import PACKAGE, ROOT, modules

FILE_LINES = 500
FUNCTION_LINES = 70
PARAMETERS = 4
MEMBERS = 15
EXCEPTIONS: set[str] = set()

EMPTY_FILE_NAMES = {"utils", "util", "common", "misc", "helpers", "helper", "types"}
EMPTY_CLASS_NAMES = re.compile(r"(Manager|Helper|Util|Utils|Base|Impl|Mixin)$")
PRIVATE_PLACES = re.compile(r"(?<![\w.~])/(home|root)/")
# One file of each kind touches the world. The measuring side has a stopwatch of its own.
OWNERS = {
    "clock": (re.compile(r"\btime\.(time|monotonic|perf_counter)"), {"api", "live", "measure"}),
    "environment": (re.compile(r"\bos\.(environ|getenv)"), {"config", "kernels"}),
    "entropy": (re.compile(r"\b(secrets\.|os\.urandom|uuid\.uuid)"), {"api"}),
}


def nodes(nodes_of):
    return [(module, node) for module in modules() for node in nodes_of(module)]


def test_files_are_short_and_say_what_they_are():
    offenders = []
    for module in modules():
        if module.lines > FILE_LINES and module.name not in EXCEPTIONS:
            offenders.append(f"{module.name}: {module.lines} lines")
        if module.path.stem in EMPTY_FILE_NAMES:
            offenders.append(f"{module.name}: an empty name")
        if len(module.path.relative_to(PACKAGE).parts) > 3:
            offenders.append(f"{module.name}: too deep")
        if module.tree.body and not ast.get_docstring(module.tree):
            offenders.append(f"{module.name} does not say what it is for")
    assert not offenders


def test_functions_are_short_and_take_few_parameters():
    offenders = []
    for module, node in nodes(lambda module: module.functions()):
        lines = (node.end_lineno or 0) - node.lineno + 1
        if lines > FUNCTION_LINES:
            offenders.append(f"{module.name}:{node.name}: {lines} lines")
        arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        count = len([a for a in arguments if a.arg not in ("self", "cls")])
        # A command's parameters are its flags; a dataclass-like struct is built by keywords.
        limit = 40 if module.room == "commands" else PARAMETERS + len(node.args.kwonlyargs)
        if count > limit:
            offenders.append(f"{module.name}:{node.name}: {count} parameters")
    assert not offenders


def test_classes_are_narrow():
    offenders = []
    for module, node in nodes(lambda module: module.classes()):
        name = f"{module.name}:{node.name}"
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        if len(methods) > MEMBERS:
            offenders.append(f"{name}: {len(methods)} methods")
        if EMPTY_CLASS_NAMES.search(node.name):
            offenders.append(f"{name}: an empty name")
        attributes = {
            target.attr
            for method in methods
            for target in ast.walk(method)
            if isinstance(target, ast.Attribute)
            and isinstance(target.ctx, ast.Store)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        }
        if len(attributes) > MEMBERS:
            offenders.append(f"{name}: {len(attributes)} attributes, {sorted(attributes)}")
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
