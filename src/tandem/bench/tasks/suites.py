"""The suites of `tandem eval`: which tasks, how many, how they are asked, and what is aimed at."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from tandem.bench.tasks.arithmetic import arithmetic
from tandem.bench.tasks.fluency import fluency
from tandem.bench.tasks.recall import CountTokens, recall
from tandem.bench.tasks.task import Task
from tandem.bench.tasks.tool_call import tool_call
from tandem.facts.errors import InvalidConfiguration

Make = Callable[[Random, CountTokens], Task]


@dataclass(frozen=True)
class Suite:
    """Tasks of one kind. `target` is the share of right replies that the bundled model is to reach;
    with several `votes`, that many replies are drawn and the most frequent answer counts."""

    name: str
    target: float | None
    samples: int
    max_tokens: int
    make: Make
    votes: int = 1
    temperature: float = 0.0


def _recall(context_tokens: int) -> Make:
    return lambda rng, count_tokens: recall(rng, context_tokens, count_tokens)


SUITES: tuple[Suite, ...] = (
    Suite("recall-1k", 0.97, 100, 32, _recall(1000)),
    Suite("recall-2k", 0.90, 100, 32, _recall(2000)),
    Suite("recall-4k", None, 50, 32, _recall(4000)),
    Suite("arithmetic", 0.60, 200, 200, lambda rng, _: arithmetic(rng)),
    Suite(
        "arithmetic-vote", 0.70, 100, 200, lambda rng, _: arithmetic(rng), votes=8, temperature=0.8
    ),
    Suite("tool-call", 0.98, 100, 160, lambda rng, _: tool_call(rng)),
    Suite("fluency", 0.90, 50, 96, lambda rng, _: fluency(rng), temperature=0.7),
)


def choose_suites(names: str | None) -> list[Suite]:
    """Those named in a list as `recall-1k,arithmetic`, or all. Raises `InvalidConfiguration`."""
    if names is None:
        return list(SUITES)
    by_name = {suite.name: suite for suite in SUITES}
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in by_name:
            raise InvalidConfiguration(f"--tasks knows {', '.join(by_name)}, not {name!r}")
    if not chosen:
        raise InvalidConfiguration(f"--tasks needs at least one of {', '.join(by_name)}")
    return [by_name[name] for name in chosen]


def make_tasks(suite: Suite, count: int, seed: int, count_tokens: CountTokens) -> list[Task]:
    """The same tasks for the same seed; each has its own stream, so more samples keep the first."""
    return [
        suite.make(Random(f"{suite.name} {seed} {number}"), count_tokens) for number in range(count)
    ]


def scaled_counter(tokens_per_piece: float) -> CountTokens:
    """Token counts without asking for each line: words, numbers and marks, times what a tokenizer
    makes of one on average."""
    return partial(_scaled_count, tokens_per_piece)


def count_pieces(text: str) -> int:
    """Words, numbers, marks and line ends."""
    return len(re.findall(r"\w+|[^\w\s]|\n", text))


def _scaled_count(tokens_per_piece: float, text: str) -> float:
    return count_pieces(text) * tokens_per_piece
