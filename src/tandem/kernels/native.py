"""Native code: builds the C++ sources in `cpp` into one shared library, once for each compiler and
CPU, loads it, and asks the operating system for memory as it suits.

Owns the cache directory's layout. Any number of processes may ask at the same time: a file lock
lets one build, and a rename publishes the finished file. What somebody else may have written is
never loaded: code from a library runs as this user. Needs no torch; whatever hands tensors to the
library has imported torch before, so that both share one OpenMP runtime.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Protocol

from tandem.kernels.instructions import (
    INSTRUCTIONS,
    Instructions,
    InstructionSet,
    cpu_identity,
)

SOURCES = Path(__file__).resolve().parent / "cpp"
COMPILERS = ("g++", "c++", "clang++")
COMMON_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-ffp-contract=fast", "-Wall")
COMPILE_SECONDS = 300
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

Pointer = ctypes.c_void_p
Integer = ctypes.c_int64
Real = ctypes.c_float
IntegerArray = ctypes.POINTER(Integer)

HUGE_PAGE_BYTES = 2 << 20
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23
_C_LIBRARY = ctypes.CDLL(None)


class KernelArgumentError(ValueError):
    """A caller handed a kernel what it cannot take. Names the argument, what it was and what was
    expected."""

    def __init__(self, argument: str, found: object, expected: str) -> None:
        super().__init__(f"{argument} is {found}; expected {expected}")
        self.argument = argument


@dataclass(frozen=True)
class BuildFailure:
    """Why there is no library, in one line."""

    reason: str


def default_cache_directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "tandem"


def build(
    cache_directory: Path,
    compilers: Sequence[str] = COMPILERS,
    instruction_set: InstructionSet = "auto",
) -> Path | BuildFailure:
    """The path of the library for this machine, built if it is not there yet."""
    compiler = next((found for name in compilers if (found := shutil.which(name))), None)
    if compiler is None:
        return BuildFailure(f"no C++ compiler on PATH (tried {', '.join(compilers)})")
    try:
        library = cache_directory / f"kernels-{build_key(compiler, instruction_set)}.so"
        cache_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if problem := refused_directory(cache_directory):
            return BuildFailure(problem)
        if is_own(library):
            return library
        with file_lock(cache_directory / "kernels.lock"):
            # One that somebody else may have written is replaced.
            if is_own(library):
                return library
            return compile_library(compiler, library, INSTRUCTIONS[instruction_set])
    except (OSError, subprocess.SubprocessError) as error:
        return BuildFailure(f"building native kernels failed: {error}")


def refused_directory(cache_directory: Path) -> str:
    """Why nothing in this directory can be believed; empty if it can. One of this user's own that
    others may write to is closed to them."""
    descriptor = os.open(cache_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid not in (os.geteuid(), 0):
            return (
                f"the kernel cache {cache_directory} belongs to another user (uid {found.st_uid}); "
                "set XDG_CACHE_HOME to a folder of your own"
            )
        if found.st_mode & OTHERS_WRITE and found.st_uid == os.geteuid():
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~OTHERS_WRITE)
        elif found.st_mode & OTHERS_WRITE:
            return (
                f"the kernel cache {cache_directory} may be written to by others (mode "
                f"{stat.S_IMODE(found.st_mode):o}); set XDG_CACHE_HOME to a folder of your own"
            )
        return ""
    finally:
        os.close(descriptor)


def is_own(library: Path) -> bool:
    """Whether it is there, and only this user or root can have written it."""
    try:
        found = library.lstat()
    except FileNotFoundError:
        return False
    owned = found.st_uid in (os.geteuid(), 0) and not found.st_mode & OTHERS_WRITE
    return stat.S_ISREG(found.st_mode) and owned


def sources() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))


def build_key(compiler: str, instruction_set: InstructionSet = "auto") -> str:
    """Covers all that decides the machine code: sources, compiler, flags, CPU."""
    digest = hashlib.blake2b(digest_size=12)
    for path in [*sources(), *sorted(SOURCES.glob("*.h"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    target = cpu_identity() if instruction_set == "auto" else platform.machine()
    flags = (*COMMON_FLAGS, INSTRUCTIONS[instruction_set].flag_sets)
    digest.update(version + repr((compiler, flags, target)).encode())
    return digest.hexdigest()


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def compile_library(
    compiler: str, library: Path, instructions: Instructions
) -> Path | BuildFailure:
    """The first way that compiles wins. Without OpenMP the kernels run on one thread."""
    complaint = ""
    for openmp, flags in product((("-fopenmp",), ()), instructions.flag_sets):
        with tempfile.TemporaryDirectory(dir=library.parent) as work:
            finished = Path(work) / library.name
            complaint = compile_and_link([compiler, *COMMON_FLAGS, *flags, *openmp], finished)
            if not complaint:
                finished.chmod(0o755)
                finished.replace(library)
                return library
    return BuildFailure(f"{compiler} failed: {complaint}")


def compile_and_link(command: list[str], library: Path) -> str:
    """Compiles the sources side by side; returns the first complaint, empty if there is none."""
    objects = [library.parent / f"{source.stem}.o" for source in sources()]
    running = [
        subprocess.Popen(
            [*command, "-c", str(source), "-o", str(target)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for source, target in zip(sources(), objects, strict=True)
    ]
    complaints = [process.communicate(timeout=COMPILE_SECONDS)[1] for process in running]
    for process, complaint in zip(running, complaints, strict=True):
        if process.returncode:
            return first_error(complaint)
    link = subprocess.run(
        [*command, "-shared", *map(str, objects), "-o", str(library)],
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS,
        check=False,
    )
    return first_error(link.stderr) if link.returncode else ""


def first_error(complaint: str) -> str:
    lines = complaint.splitlines() or ["no message"]
    return next((line for line in lines if "error" in line), lines[0])


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


def load_library(
    cache_directory: Path | None = None, instruction_set: InstructionSet = "auto"
) -> NativeLibrary | BuildFailure:
    """Builds if needed; a failure carries one line for the log of whoever asked."""
    path = build(cache_directory or default_cache_directory(), instruction_set=instruction_set)
    if isinstance(path, BuildFailure):
        return path
    try:
        return NativeLibrary(ctypes.CDLL(str(path)), path)
    except OSError as error:
        return BuildFailure(f"loading native kernels failed: {error}")


def advise_huge_pages(address: int, bytes: int) -> None:
    """Of memory of the host, before it is first written: pages are made at the first touch."""
    if not sys.platform.startswith("linux"):
        return
    first = -(-address // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    size = (address + bytes - first) & -HUGE_PAGE_BYTES
    if size > 0:
        _C_LIBRARY.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _MADV_HUGEPAGE)


def populate(address: int, bytes: int) -> bool:
    """Have pages behind mapped memory that begins at a page, as if all were written to; what it
    holds stays. False where that cannot be had (Linux before 5.14, no memory left): they are then
    made at the first touch. Python's lock is free meanwhile."""
    if not sys.platform.startswith("linux"):
        return False
    start, size = ctypes.c_void_p(address), ctypes.c_size_t(bytes)
    return bool(_C_LIBRARY.madvise(start, size, _MADV_POPULATE_WRITE) == 0)


def return_freed_memory() -> None:
    """Give memory that was freed back to the system, where the C library keeps it (glibc does)."""
    if hasattr(_C_LIBRARY, "malloc_trim"):
        _C_LIBRARY.malloc_trim(0)
