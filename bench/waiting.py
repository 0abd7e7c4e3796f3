"""Threads that wait for each other: milliseconds a token of a decode on all cores, by how often
OpenMP looks before a thread sleeps, alone and beside a program that keeps one core busy.

The shape of Qwen2.5-0.5B with six layers and a small vocabulary, in bfloat16. OpenMP reads its
settings once, so each setting has a process of its own.

Usage: python bench/waiting.py
"""

import os
import statistics
import subprocess
import sys
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table

from model import HALF_BILLION, Rig, load
from steps import request
from tandem.kernels.faces import choose_kernels

LAYERS, VOCABULARY, PROMPT, TOKENS = 6, 32_000, 64, 60
SETTINGS: dict[str, dict[str, str]] = {
    "OpenMP's own": {},
    "300": {"GOMP_SPINCOUNT": "300"},
    "2,000": {"GOMP_SPINCOUNT": "2000"},
    "10,000": {"GOMP_SPINCOUNT": "10000"},
    "none": {"OMP_WAIT_POLICY": "passive"},
}
BUSY = [sys.executable, "-c", "while True: pass"]
MEASURED = "--measured"


def decode() -> None:
    """Prints the milliseconds of each token."""
    kernels, _ = choose_kernels(torch.device("cpu"), torch.float32, True, "auto")
    attention = replace(HALF_BILLION.attention, window_tokens=(None,) * LAYERS)
    spec = replace(HALF_BILLION, layers=LAYERS, vocabulary_tokens=VOCABULARY, attention=attention)
    rig = Rig.around(load(spec, "bfloat16", kernels, None), 1, 256)
    rig.timed([request("warm", PROMPT, 6)])
    steps = rig.timed([request("measured", PROMPT, TOKENS)])
    print(*(1e3 * seconds for _, seconds in steps[2:]))


def milliseconds(setting: dict[str, str]) -> list[float]:
    command = [sys.executable, __file__, MEASURED]
    done = subprocess.run(
        command, env={**os.environ, **setting}, stdout=subprocess.PIPE, text=True, check=True
    )
    return [float(each) for each in done.stdout.split()]


def cells(tokens: list[float]) -> list[str]:
    last = statistics.quantiles(tokens, n=10)[-1]
    return [f"{statistics.median(tokens):.1f}, {last:.1f}", f"{statistics.fmean(tokens):.1f}"]


def main() -> None:
    if MEASURED in sys.argv:
        decode()
        return
    table = Table(title="milliseconds a token: median, 90 %; mean", title_justify="left")
    for column in ("looks before it sleeps", "alone", "mean", "a busy neighbour", "mean"):
        table.add_column(column, justify="right")
    alone = {name: milliseconds(setting) for name, setting in SETTINGS.items()}
    with subprocess.Popen(BUSY) as neighbour:
        beside = {name: milliseconds(setting) for name, setting in SETTINGS.items()}
        neighbour.kill()
    for name in SETTINGS:
        table.add_row(name, *cells(alone[name]), *cells(beside[name]))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
