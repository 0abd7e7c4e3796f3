"""Building: once, shared, and never in the way when there is no compiler."""

from pathlib import Path

import torch

from tandem.kernels.faces import choose_kernels
from tandem.kernels.native import (
    BuildFailure,
    NativeLibrary,
    build,
    build_key,
    first_error,
    load_library,
    sources,
)


def test_without_a_compiler_there_is_a_reason(tmp_path: Path) -> None:
    outcome = build(tmp_path, compilers=["no-such-compiler"])
    assert outcome == BuildFailure("no C++ compiler on PATH (tried no-such-compiler)")


def test_a_compiler_that_fails_leaves_a_reason_and_no_file(tmp_path: Path) -> None:
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] || { echo 'fatal error: no' >&2; exit 1; }\n")
    broken.chmod(0o755)
    outcome = build(tmp_path / "cache", compilers=[str(broken)])
    assert isinstance(outcome, BuildFailure)
    assert "fatal error: no" in outcome.reason
    assert not list((tmp_path / "cache").glob("*.so"))


def test_an_unwritable_cache_is_a_reason(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert isinstance(build(blocked / "cache"), BuildFailure)


def test_a_second_load_finds_the_first(library: NativeLibrary) -> None:
    modified = library.path.stat().st_mtime_ns
    again = load_library()
    assert isinstance(again, NativeLibrary)
    assert again.path == library.path
    assert again.path.stat().st_mtime_ns == modified


def test_the_key_names_compiler_and_sources(library: NativeLibrary) -> None:
    assert len(sources()) >= 5
    assert build_key("/bin/true") != build_key("/bin/echo")
    assert first_error("note\nx.cpp:1: error: bad\n") == "x.cpp:1: error: bad"


def test_the_choice_says_why(library: NativeLibrary) -> None:
    cpu = torch.device("cpu")
    kernels, reason = choose_kernels(cpu, torch.float32, allow_native=True)
    assert (kernels.name, kernels.batch_invariant) == ("native", True)
    assert str(library.path) in reason
    for dtype, allowed in ((torch.float32, False), (torch.float64, True)):
        kernels, reason = choose_kernels(cpu, dtype, allow_native=allowed)
        assert (kernels.name, kernels.batch_invariant) == ("reference", False)
        assert reason.startswith("plain torch: ")
    assert choose_kernels(torch.device("cuda"), torch.bfloat16, True)[0].name == "reference"
