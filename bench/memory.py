"""What a serving process holds beside its weights and KV pool, measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

from figures import Figure

MIB = 1 << 20
CHILD = Path(__file__).with_name("memory_child.py")


def memory_figure() -> Figure:
    process = subprocess.run(
        [sys.executable, str(CHILD)], capture_output=True, text=True, check=True
    )
    measured = json.loads(process.stdout.splitlines()[-1])
    beside = measured["peak"] - measured["weights"] - measured["kv"]
    weights, kv = measured["weights"] / MIB, measured["kv"] / MIB
    return Figure(
        f"peak memory beside weights ({weights:.0f} MiB) and KV pool ({kv:.0f} MiB)",
        beside / MIB,
        "MiB",
        0.0,
        600.0 * 1e6 / MIB,
        "MiB goal",
        "≤ 600 MB",
        higher_is_better=False,
    )
