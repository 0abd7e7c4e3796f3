"""Property tests draw the same examples in every run; HYPOTHESIS_PROFILE=explore draws new ones."""

import ast
import gc
import inspect
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.coroutines import run_coroutine

settings.register_profile("seeded", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "seeded"))

# Threads of OpenMP wait for each other without spinning, here and in whatever tests start: where
# several tests share the cores, spinning takes them from whoever is waited for. It is read when
# torch is imported, which nothing has done yet.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Tests start some two hundred processes. Where the environment forbids to keep what was compiled,
# as it does in many containers, each of them would compile the whole source anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Hundreds of HTTP clients are made, and each would read all certificates of the system, which takes
# longer than most tests. Nothing is spoken to that has one: this folder holds none.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# Thousands of tests, and what they import, live until the end. While they are collected the
# collector would look through them again and again, and every time later that it looks for garbage.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Simulated clusters come first: files of these take long, and the last of them would run alone
    while all other processes are through."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/twin/"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded_torch() -> None:
    """What a test draws does not depend on the tests before it. Most tests never import torch."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs tests that are coroutines."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    run_coroutine(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


# A shell starts what runs in its background with Ctrl-C ignored, and so would be all processes that
# tests start, and send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _parse_twice(*arguments: Any, **options: Any) -> Any:
    try:
        return _parse(*arguments, **options)
    except SystemError:
        return _parse(*arguments, **options)


# Some releases of Python 3.11 lose count of a syntax tree's depth (python/cpython#106905) when what
# is collected meanwhile prints a traceback, which takes a tree as well. A failure that pytest
# shows just then would be an error of pytest's own and end its process.
_parse, ast.parse = ast.parse, _parse_twice
