"""A room imports only rooms below it, and the rooms that decide are pure."""

import sys

from tests.style.source import modules

EVERYTHING = {
    "api", "bench", "cluster", "commands", "config", "cost", "engine", "facts", "forecast",
    "gguf", "kernels", "kv", "live", "messages", "models", "observe", "policy", "report", "text",
    "twin",
}  # fmt: skip
MAY_IMPORT = {
    "facts": set(),
    "messages": {"facts"},
    "cost": {"facts"},
    "policy": {"facts", "cost"},
    "cluster": {"facts", "messages", "policy", "cost"},
    "report": {"facts"},
    # The container of weights and tokenizers together, which both of their rooms read.
    "gguf": {"facts"},
    "kernels": {"facts"},
    "text": {"facts", "gguf"},
    "observe": {"facts", "messages", "cluster"},
    "models": {"facts", "gguf", "kernels"},
    "kv": {"facts", "messages", "kernels"},
    "engine": {"facts", "kernels", "models", "kv"},
    # Beside its port, the front door drives what is decided about one call alone.
    "api": {"facts", "text", "policy"},
    "twin": {"facts", "messages", "cost", "policy", "cluster", "observe", "report"},
    "bench": {"facts", "report"},
    # Forecasts made by libraries, behind the port of `policy`.
    "forecast": {"facts", "policy"},
    # Composition: these read wishes and wire rooms together.
    "config": EVERYTHING - {"commands", "live", "twin"},
    # The processes of a cluster: they wire rooms together, each on its own.
    "live": EVERYTHING - {"commands", "twin", "bench"},
    "commands": EVERYTHING,
}
PURE = {"facts", "messages", "cost", "policy", "cluster"}
# What reads a clock, draws chance, waits, talks or logs has no place where decisions are made.
IMPURE_LIBRARY = {
    "asyncio", "concurrent", "ctypes", "datetime", "glob", "http", "io", "logging",
    "multiprocessing", "os", "pathlib", "queue", "random", "secrets", "select", "selectors",
    "shutil", "signal", "socket", "ssl", "subprocess", "sys", "tempfile", "threading", "time",
    "urllib", "uuid",
}  # fmt: skip


def test_a_room_imports_only_rooms_below_it():
    offenders = []
    for module in modules():
        if not module.room or module.room == "bundled":
            continue
        assert module.room in MAY_IMPORT, f"{module.room} is not a room of the house"
        allowed = MAY_IMPORT[module.room] | {module.room}
        for name in module.imports():
            parts = name.split(".")
            ours = parts[0] == "tandem" and len(parts) > 1 and parts[1] != "__version__"
            if ours and parts[1] not in allowed:
                offenders.append(f"{module.name} imports {name}")
    assert not offenders


def test_rooms_that_decide_are_pure():
    offenders = []
    for module in modules():
        for name in module.imports() if module.room in PURE else ():
            top = name.split(".")[0]
            known = top in sys.stdlib_module_names or top in {"numpy", "msgspec", "tandem"}
            if top in IMPURE_LIBRARY or not known:
                offenders.append(f"{module.name} imports {name}")
    assert not offenders


def test_no_import_cycles():
    names = {module.dotted for module in modules()}
    graph = {m.dotted: {n for n in m.imports() if n in names and n != m.dotted} for m in modules()}
    settled: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in settled:
            for imported in sorted(graph[name]):
                visit(imported, (*path, name))
            settled.add(name)

    for name in sorted(graph):
        visit(name, ())
