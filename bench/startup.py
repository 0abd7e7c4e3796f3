"""How long after its command `tandem serve` has given a first token: half a billion random
parameters, whose files are in the page cache and whose kernels are compiled, beside `import torch`
alone, in turns.

Usage: python bench/startup.py [--kinds bfloat16,int8,int4] [--starts 8]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from figures import Figure, show
from limits import summarised
from peer_files import write_folder
from tandem_process import serving

GOAL_S = 3.0
OPTIONS = {
    "bfloat16": (),
    "int8": ("--quantization", "int8"),
    "int4": ("--quantization", "int4"),
}


def first_token_s(checkpoint: Path, kind: str) -> float:
    start = time.perf_counter()
    with serving("serve", str(checkpoint), "--port", "0", *OPTIONS[kind]) as url:
        body = {"model": checkpoint.name, "prompt": [1, 2, 3, 4], "max_tokens": 1}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), headers
        )
        urllib.request.urlopen(request).read()
        return time.perf_counter() - start


def import_s() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start


def figures_of(checkpoint: Path, kinds: list[str], starts: int) -> list[Figure]:
    """The first start of each is not counted: it may compile kernels and digests the weights."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    imports = []
    for _ in range(1 + starts):
        for kind in kinds:
            seconds[kind].append(first_token_s(checkpoint, kind))
        imports.append(import_s())
    limit = summarised(imports[1:]).median
    figures = []
    for kind in kinds:
        found = seconds[kind][1:]
        timing = summarised(found)
        name = f"first token, {kind} ({min(found):.2f} to {max(found):.2f})"
        of = (timing.median, "s", timing.spread, limit, "s import torch", f"≤ {GOAL_S:.0f} s")
        figures.append(Figure(name, *of, higher_is_better=False))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(OPTIONS))
    parser.add_argument("--starts", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as held:
        checkpoint = Path(held) / "half"
        write_folder(checkpoint)
        figures = figures_of(checkpoint, options.kinds.split(","), options.starts)
    show(figures, "seconds from the command on, medians (least to most)")


if __name__ == "__main__":
    main()
