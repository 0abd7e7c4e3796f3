"""The load of a storm: questions with the arrivals and lengths of a recorded trace. Answers depend
on nothing but the question, so that one undisturbed process can give them beforehand."""

import csv
import itertools
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

TRACE = Path(__file__).parents[1] / "bench" / "data" / "azure_conv_200.csv"
MOST_PROMPT_WORDS = 700
FEWEST_OUTPUT_TOKENS, MOST_OUTPUT_TOKENS = 24, 300
WORDS = (
    "the", "fox", "saw", "a", "red", "house", "and", "then", "it", "ran", "over", "every", "small",
    "hill", "to", "find", "one", "more", "friend",
)  # fmt: skip


class Manner(StrEnum):
    """How a client behaves: it reads its stream; wants the answer whole; reads slowly; leaves after
    some pieces; or has a time limit."""

    READS = "reads"
    WHOLE = "whole"
    SLOW = "slow"
    LEAVES = "leaves"
    LIMITED = "limited"


@dataclass(frozen=True)
class Question:
    """One request: `path` and `body` without `stream`. `turns` are what the user says later in the
    same conversation, each after the answer before."""

    name: str
    path: str
    body: dict[str, Any]
    turns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arrival:
    """`after_pieces` is when a client that leaves does so."""

    at_s: float
    question: Question
    manner: Manner
    after_pieces: int = 0


@dataclass(frozen=True)
class Answer:
    """An answer as the client sees it."""

    texts: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    output_tokens: int = 0
    logprobs: tuple[float, ...] = field(default=(), repr=False)


# What each question in turn asks for besides its length.
PARAMETERS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1, "seed": 5},
    {"temperature": 0, "stop": ["ox "]},
    {"temperature": 0.8, "seed": 9, "logprobs": 1},
    {"temperature": 1, "seed": 3, "n": 3},
    {"temperature": 0.7, "seed": 2, "frequency_penalty": 0.8, "presence_penalty": 0.4},
    {"temperature": 0, "logprobs": 0},
    {"temperature": 0.9, "seed": 4, "top_p": 0.9, "top_k": 40},
)


def trace_lengths() -> list[tuple[float, int, int]]:
    """Arrival in seconds from the first, prompt tokens and output tokens of every row."""
    with TRACE.open() as file:
        rows = [
            (datetime.fromisoformat(row["TIMESTAMP"][:26]), row) for row in csv.DictReader(file)
        ]
    first = rows[0][0]
    return [
        ((at - first).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for at, row in rows
    ]


def catalogue(seed: int, count: int, most_tokens: int = MOST_OUTPUT_TOKENS) -> list[Question]:
    """Questions with the lengths of the trace; every fourth is a conversation."""
    chance = Random(f"asks {seed}")
    rows = trace_lengths()
    first = chance.randrange(len(rows))
    questions = []
    for index in range(count):
        _, prompt_tokens, output_tokens = rows[(first + index) % len(rows)]
        words = max(8, min(MOST_PROMPT_WORDS, prompt_tokens // 2))
        tokens = max(FEWEST_OUTPUT_TOKENS, min(most_tokens, 2 * output_tokens))
        # Some share their beginning, as prompts do.
        family = Random(f"family {chance.randrange(count // 3 + 1)}")
        shared = [family.choice(WORDS) for _ in range(words // 2)]
        own = [chance.choice(WORDS) for _ in range(words - len(shared))]
        text = " ".join(shared + own)
        parameters = dict(PARAMETERS[index % len(PARAMETERS)])
        questions.append(
            _question(f"ask {index}", text, parameters | {"max_tokens": tokens}, index % 4 == 3)
        )
    return questions


def _question(name: str, text: str, parameters: dict[str, Any], conversation: bool) -> Question:
    body = {"model": "tandem-mini", "ignore_eos": "stop" not in parameters, **parameters}
    if not conversation:
        return Question(name, "/v1/completions", body | {"prompt": text})
    if "logprobs" in body:
        body |= {"logprobs": True, "top_logprobs": body["logprobs"]}
    body["max_tokens"] = min(80, body["max_tokens"])
    turns = ("Tell me more.", "And then?")
    return Question(
        name,
        "/v1/chat/completions",
        body | {"messages": [{"role": "user", "content": text}]},
        turns,
    )


def arrivals(seed: int, questions: list[Question], duration_s: float, rate: float) -> list[Arrival]:
    """Requests over `duration_s`, `rate` a second on average, with the gaps of the trace."""
    chance = Random(f"arrivals {seed}")
    rows = trace_lengths()
    gaps_s = [after[0] - before[0] for before, after in itertools.pairwise(rows)]
    scale = 1 / (rate * (sum(gaps_s) / len(gaps_s)))
    found, at_s, index = [], 0.0, chance.randrange(len(gaps_s))
    while at_s < duration_s:
        manner = chance.choice([Manner.READS] * 6 + [Manner.WHOLE] + list(Manner)[2:])
        found.append(Arrival(at_s, chance.choice(questions), manner, chance.randint(1, 40)))
        at_s += gaps_s[index % len(gaps_s)] * scale
        index += 1
    return found
