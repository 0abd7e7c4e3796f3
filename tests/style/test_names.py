"""Names that say nothing, links that lead nowhere, and what only few files may do: touch the world,
catch everything, start threads.

How long a file or how wide a class may be is for its reader to judge, not for a counter.
"""

import ast
import re

import pytest

from tests.style.source import ROOT, modules

EMPTY_FILE_NAMES = {"utils", "util", "common", "misc", "helpers", "helper", "types"}
EMPTY_CLASS_NAMES = re.compile(r"(Manager|Helper|Util|Utils|Base|Impl|Mixin)$")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "training/README.md"]
# Nothing dies in silence while others wait for it: every thread is supervised.
SUPERVISOR = "src/tandem/kv/threads.py"
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
    assert broad == [SUPERVISOR]


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


def test_threads_are_made_by_their_supervisor_alone():
    makers = {
        module.name
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("Thread", "threading.Thread", "_thread.start_new_thread")
    }
    assert makers == {SUPERVISOR}


def test_relative_links_lead_to_files():
    lost = [
        f"{page.relative_to(ROOT)} links to {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not lost


def test_pages_name_files_that_are_there():
    lost = [
        f"{page.relative_to(ROOT)} names {file}"
        for page in PAGES
        for written in re.findall(r"`([\w/]+/[\w/{},*]+\.(?:py|cpp))", page.read_text())
        for file in spelled_out(written)
        if "NAME" not in file
        and not any(ROOT.glob(file))
        and not any((ROOT / "src/tandem").rglob(file))
    ]
    assert not lost


def spelled_out(written: str) -> list[str]:
    """`a/{b,c}.py` as the files that it means."""
    braces = re.search(r"\{([^}]*)\}", written)
    if braces is None:
        return [written]
    before, after = written[: braces.start()], written[braces.end() :]
    return [file for each in braces[1].split(",") for file in spelled_out(before + each + after)]
