"""Loads the built library. Whatever hands tensors to it has imported torch before, so that both
share one OpenMP runtime; a process that has none need not load torch for it."""

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tandem.kernels.native.build import BuildFailure, build, default_cache_directory

Pointer = ctypes.c_void_p
Integer = ctypes.c_int64
Real = ctypes.c_float
IntegerArray = ctypes.POINTER(Integer)


class NativeFunction(Protocol):
    def __call__(self, *arguments: "int | float | ctypes.Array[Integer] | None") -> None: ...


@lru_cache(maxsize=256)
def integers(*values: int) -> "ctypes.Array[Integer]":
    """An int64 array for C; the few stride and shape tuples of a model are converted once."""
    return (Integer * len(values))(*values)


@dataclass(frozen=True)
class NativeLibrary:
    """Hands out functions with their argument types set once."""

    handle: ctypes.CDLL
    path: Path

    def function(self, name: str, *argument_types: type) -> NativeFunction:
        found = self.handle[name]
        found.argtypes = list(argument_types)
        found.restype = None
        return found

    def number(self, name: str) -> int:
        """The value of a function without arguments."""
        found = self.handle[name]
        found.restype = Integer
        return int(found())


def load_library(cache_directory: Path | None = None) -> NativeLibrary | BuildFailure:
    """Builds if needed; a failure carries one line for the log of whoever asked."""
    path = build(cache_directory or default_cache_directory())
    if isinstance(path, BuildFailure):
        return path
    try:
        return NativeLibrary(ctypes.CDLL(str(path)), path)
    except OSError as error:
        return BuildFailure(f"loading native kernels failed: {error}")
