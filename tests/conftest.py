"""Property tests draw the same examples in every run; HYPOTHESIS_PROFILE=explore draws new ones."""

import ast
import os
import signal
from typing import Any

from hypothesis import settings

settings.register_profile("seeded", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "seeded"))

# Threads of OpenMP wait for each other without spinning, here and in whatever tests start: where
# several tests share the cores, spinning takes them from whoever is waited for. It is read when
# torch is imported, which nothing has done yet.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

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
