"""Which instructions the C++ kernels may use: those of this processor, or a set by name, with which
unlike processors compute the same bits."""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tandem.facts.errors import InvalidConfiguration

InstructionSet = Literal[
    "auto", "baseline", "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16"
]

_AVX2 = ("avx2", "fma", "f16c", "bmi2")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@dataclass(frozen=True)
class Instructions:
    """How a compiler is told, in the ways to try in turn, and which flags in /proc/cpuinfo they
    need."""

    flag_sets: tuple[tuple[str, ...], ...]
    needed: tuple[str, ...] = ()


def _x86(flags: str, *needed: str) -> Instructions:
    return Instructions((tuple(flags.split()),), needed)


# Without -mtune, which may choose other instructions on each processor: a name says what is
# computed.
INSTRUCTIONS: dict[InstructionSet, Instructions] = {
    "auto": Instructions((("-march=native",), ("-mcpu=native",), ())),
    "baseline": Instructions(((),)),
    "avx2": _x86("-march=x86-64-v3", *_AVX2),
    "avx-vnni": _x86("-march=x86-64-v3 -mavxvnni", *_AVX2, "avx_vnni"),
    "avx512": _x86("-march=x86-64-v4", *_AVX512),
    "avx512-vnni": _x86("-march=x86-64-v4 -mavx512vnni", *_AVX512, "avx512_vnni"),
    "avx512-bf16": _x86(
        "-march=x86-64-v4 -mavx512vnni -mavx512bf16", *_AVX512, "avx512_vnni", "avx512_bf16"
    ),
}


def cpu_lines() -> list[str]:
    """Lines of /proc/cpuinfo that say what the processor can; none where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return []
    wanted = ("flags", "Features", "model name", "CPU part")
    return sorted({line for line in lines if line.startswith(wanted)})


def cpu_identity() -> str:
    """What code for this processor depends on; its name where its flags are not listed."""
    return "\n".join([platform.machine(), platform.processor(), *cpu_lines()])


def missing_instructions(name: InstructionSet) -> tuple[str, ...]:
    """What this processor lacks, by the names of /proc/cpuinfo."""
    flags = {flag for line in cpu_lines() if line.startswith("flags") for flag in line.split()}
    return tuple(flag for flag in INSTRUCTIONS[name].needed if flag not in flags)


def available_instructions() -> list[InstructionSet]:
    return [name for name in INSTRUCTIONS if not missing_instructions(name)]


def require_instructions(name: InstructionSet) -> None:
    if missing := missing_instructions(name):
        raise InvalidConfiguration(
            f"instruction_set is {name}, but this processor lacks {', '.join(missing)}; "
            f"expected one of {', '.join(available_instructions())}"
        )
