"""Imports that take seconds, of what only one verb or process needs."""

import gc
import importlib
import sys
from types import ModuleType


def import_heavy(name: str) -> ModuleType:
    """The module of this name. Without garbage collection meanwhile: torch makes a million objects
    that live as long as the process, and a fifth of the time would go into looking for garbage
    among them. The collector leaves them alone afterwards, too."""
    if name in sys.modules:
        return sys.modules[name]
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()
