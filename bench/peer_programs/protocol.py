"""How a peer is asked: lines of JSON on its standard input, one answer each on its standard output.
Runs in the peer's own environment, so it knows nothing but the standard library.

Asked are prompts (lists of token ids) that come at once, and how many tokens each is answered with,
greedily and without an end. The answer says after how many seconds each token of the first prompt
came and the first one of every prompt, after how many all were there, and what was said.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field


@dataclass
class Answer:
    seconds: float = 0.0
    instants: list[float] = field(default_factory=list)
    first_instants: list[float] = field(default_factory=list)
    said: list[list[int]] = field(default_factory=list)


class Watch:
    """Of one question: when it began, and when tokens came."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._instants: list[float] = []
        self._first_instants: dict[int, float] = {}

    def token_came(self, prompt: int = 0) -> None:
        passed = time.perf_counter() - self._start
        self._first_instants.setdefault(prompt, passed)
        if prompt == 0:
            self._instants.append(passed)

    def answer(self, said: list[list[int]]) -> Answer:
        firsts = [self._first_instants[each] for each in sorted(self._first_instants)]
        return Answer(time.perf_counter() - self._start, self._instants, firsts, said)


Generate = Callable[[list[list[int]], list[int]], Answer]


@dataclass(frozen=True)
class Wishes:
    model: str
    kind: str
    threads: int
    sequences: int
    context_tokens: int
    prefix_caching: bool
    tandem_python: str
    instruction_set: str


def serve(load: Callable[[Wishes], Generate]) -> None:
    """Load, say so, then answer until the input ends. Libraries that print do so elsewhere."""
    parser = argparse.ArgumentParser()
    for name in ("model", "kind"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("threads", "sequences", "context-tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--prefix-caching", action="store_true")
    parser.add_argument("--tandem-python", default=sys.executable)
    parser.add_argument("--instruction-set", default="")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    generate = load(Wishes(**vars(parser.parse_args())))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(
            json.dumps(asdict(generate(asked["prompts"], asked["answers"]))),
            file=answers,
            flush=True,
        )
