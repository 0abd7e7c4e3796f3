"""`tandem serve` beside an earlier version of it, both over HTTP, in turns in one run: what
`peers.py` asks of other engines. The earlier one is installed in an environment of its own, and
must know the kinds of weights that are asked for. With `--instruction-set` this one has no more
than that, as on an older processor; the earlier one takes what there is.

Usage: python bench/earlier.py --against ITS_PYTHON [--kinds 16-bit,8-bit] [--rounds 3]
           [--instruction-set avx512]
"""

import argparse
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch
from rich.console import Console
from rich.table import Table

from limits import measure_limits
from peer_files import write_folder
from peers import CONTESTS, KINDS, OVER_HTTP, Peer, running, table_of
from tandem.kernels.instructions import InstructionSet

NO_SLOWER = 1.0


def compare(kind: str, checkpoint: Path, options: argparse.Namespace) -> Table:
    ours = Peer(OVER_HTTP, KINDS[kind][0].kind)
    versions = {
        ours: ("--instruction-set", options.instruction_set),
        replace(ours, earlier_python=options.against): (),
    }
    contests = [replace(contest, goal=NO_SLOWER) for contest in CONTESTS]
    with ExitStack() as stack:
        started = [
            stack.enter_context(running(version, checkpoint, options.threads, *words))
            for version, words in versions.items()
        ]
        for number in range(1 + options.rounds):
            for contest in contests:
                for each in started:
                    each.run(contest, number)
    return table_of(kind, started, contests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", required=True)
    parser.add_argument("--kinds", default="16-bit,8-bit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--instruction-set", choices=get_args(InstructionSet), default="auto")
    options = parser.parse_args()
    console = Console(width=150)
    with tempfile.TemporaryDirectory() as held:
        checkpoint = Path(held) / "folder"
        write_folder(checkpoint)
        for kind in options.kinds.split(","):
            console.print(f"{kind}: {measure_limits()}")
            console.print(compare(kind, checkpoint, options))


if __name__ == "__main__":
    main()
