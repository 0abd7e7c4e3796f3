"""Scores an exported model on held-out tasks.

python score.py DIR [SUITE:COUNT[:TEMPERATURE] ...]
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from check import load_exported
from sample import accuracy, held_out_tasks
from tandem.bench.tasks.task import Task

SUITES = (
    "recall-1024:200",
    "recall-2048:200",
    "recall-4000:50",
    "arithmetic:200",
    "arithmetic:200:0.8",
    "tool_call:200",
)
SEED = 99
SHOWN_FAILURES = 3


def main(folder: Path, suites: tuple[str, ...]) -> None:
    """One line a suite, and a few of the wrong replies."""
    torch.manual_seed(SEED)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = load_exported(folder)
    for suite in suites:
        name, count, *warmth = suite.split(":")
        temperature = float(warmth[0]) if warmth else 0.0
        tasks = held_out_tasks(tokenizer, name, int(count), SEED)
        failures: list[tuple[Task, str]] = []
        right = accuracy(model, tokenizer, tasks, temperature, failures)
        print(f"{name} n={count} temperature={temperature}: {right:.3f}", flush=True)
        for task, text in failures[:SHOWN_FAILURES]:
            asked = task.messages[-1]["content"][-60:]
            print(f"  {asked!r} -> {text[-120:]!r}, not {task.answer!r}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:]) or SUITES)
