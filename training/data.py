"""What the bundled model is trained on: rows of tokens with a loss weight each.

Two kinds of rows. Chat rows pack short conversations one after another. Recall rows hold one long
list and many questions about it: a single question a list would give the copying circuit one
useful token in a thousand, and it would never form.
"""

import re
from collections.abc import Callable
from random import Random

from tokenizers import Tokenizer

from chat import Part, assistant, system, tool_header, turns, user
from english import english_turns
from tandem.bench.tasks.arithmetic import Problem, arithmetic, steps
from tandem.bench.tasks.recall import ANSWER, INTROS, Fact, draw_fact, question
from tandem.bench.tasks.task import NOUNS, VALUES, Task
from tandem.bench.tasks.tool_call import tool_call, tool_conversation

Row = tuple[list[int], list[float]]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are Tandem Mini, a small and friendly assistant.",
    "Answer briefly.",
)
# The value is the only word of a recall reply that needs the list; its tokens count more.
VALUE_WEIGHT = 4.0
# The name has to be copied from the question, past lists full of names alike.
NAME_WEIGHT = 2.0
FRAME_WEIGHT = 0.1
# Of chat conversations: sums take far more practice than small talk.
ARITHMETIC_SHARE = 0.65
ARITHMETIC_WEIGHT = 2.0
# Of sums: how many are of those that people type first.
SMALL_SUM_SHARE = 0.3
MIXED_SHARE = 0.08
TOOL_TASK_SHARE = 0.4
# Of requests: how many are for a tool that is not there.
MISSING_TOOL_SHARE = 0.45
MISSING_IN_CONVERSATIONS = 0.35

SMALL_SUM_PHRASINGS = (
    *("{problem}", "{problem}", "{close}", "{problem} =", "{close}=", "{problem}?", "{close}?"),
    *("What is {problem}?", "What is {close}?", "What's {problem}?", "what is {problem}"),
    *("Calculate {problem}.", "How much is {problem}?", "Can you compute {problem}?"),
)
SIGN_WORDS = {"+": ("plus", "and"), "-": ("minus",), "*": ("times", "x")}
# Digits of both numbers.
SMALL_SUMS = ((1, 1), (1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (2, 3), (3, 2))
SMALL_PRODUCTS = ((1, 1), (1, 1), (2, 1), (1, 2))

_LINE_TOKENS = 6
_TURN_TOKENS = 27
_BATCHED_TOKENS = 9


class Encoder:
    """Turns weighted text into rows; remembers words, as the lists repeat them endlessly."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, parts: list[Part]) -> Row:
        """Part boundaries are token boundaries of the whole text, see `check.py`."""
        encoded = self._tokenizer.encode_batch(
            [part.text for part in parts], add_special_tokens=False
        )
        ids: list[int] = []
        weights: list[float] = []
        for part, piece in zip(parts, encoded, strict=True):
            ids += piece.ids
            weights += [part.weight] * len(piece.ids)
        return ids, weights

    def row(self, draw: Callable[[], list[Part]], row_tokens: int) -> Row:
        """Conversations one after another until the row is full; the last one is cut."""
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) < row_tokens + 1:
            more_ids, more_weights = self.encode(draw())
            ids += more_ids
            weights += more_weights
        return ids[: row_tokens + 1], weights[: row_tokens + 1]


def chat_parts(rng: Random) -> list[Part]:
    """A conversation of the English domain or of arithmetic, at times of both."""
    opening = [system(rng.choice(SYSTEM_PROMPTS))] if rng.random() < 0.15 else []
    kind = rng.random()
    if kind < ARITHMETIC_SHARE * SMALL_SUM_SHARE:
        return opening + small_sum_parts(rng)
    if kind < ARITHMETIC_SHARE:
        return opening + _task_turns(arithmetic(rng, held_out=False), ARITHMETIC_WEIGHT)
    spoken = english_parts(rng)
    if kind < ARITHMETIC_SHARE + MIXED_SHARE:
        spoken += _task_turns(arithmetic(rng, held_out=False), ARITHMETIC_WEIGHT)
    return opening + spoken


def small_sum_parts(rng: Random) -> list[Part]:
    """What people try first: small and uneven numbers, in as few words as will do."""
    while True:
        sign = rng.choice("++--*")
        left_digits, right_digits = rng.choice(SMALL_PRODUCTS if sign == "*" else SMALL_SUMS)
        left, right = rng.randrange(10**left_digits), rng.randrange(10**right_digits)
        if sign == "-" and left < right:
            left, right = right, left
        problem = Problem(left, sign, right)
        if not problem.held_out or min(left_digits, right_digits) == 1:
            break
    form = rng.choice(SMALL_SUM_PHRASINGS)
    asked = form.format(problem=problem.text, close=problem.text.replace(" ", ""))
    if rng.random() < 0.2:
        asked = f"{left} {rng.choice(SIGN_WORDS[sign])} {right}" + rng.choice(("", "?"))
        asked = rng.choice(("", "What is ", "What's ", "what is ")) + asked
    return [user(asked), *assistant([Part(steps(problem), ARITHMETIC_WEIGHT)])]


def english_parts(rng: Random) -> list[Part]:
    """A conversation of the English domain."""
    spoken: list[Part] = []
    for asked, reply in english_turns(rng):
        spoken += [user(asked), *assistant([Part(reply, 1.0)])]
    return spoken


def tool_parts(rng: Random) -> list[Part]:
    """A conversation with tools in its system turn: as in the evaluation, or a longer one."""
    if rng.random() < TOOL_TASK_SHARE:
        task = tool_call(rng, held_out=False, missing_share=MISSING_TOOL_SHARE)
        return [tool_header(task.tools), *_task_turns(task)]
    tools, messages = tool_conversation(rng, rng.randint(2, 6), MISSING_IN_CONVERSATIONS)
    return [tool_header(tools), *turns(messages)]


def recall_parts(rng: Random, row_tokens: int, several_share: float = 0.4) -> list[Part]:
    """One list and as many questions as fill the rest of the row, so many of them after several
    names at once."""
    facts_share = 0.35 if row_tokens < 1000 else 0.6
    names: list[str] = []
    count = max(2, int(row_tokens * facts_share / _LINE_TOKENS * rng.uniform(0.6, 1.4)))
    facts = [draw_fact(rng, names) for _ in range(count)]
    lines = "\n".join(fact.line for fact in facts)
    head = f"{rng.choice(INTROS)}\n{lines}\n"
    left_tokens = row_tokens - len(facts) * _LINE_TOKENS
    parts: list[Part] = []
    while left_tokens > 0:
        if rng.random() < several_share:
            asked = rng.choices(facts, k=rng.randint(2, 8))
            text = "Look up " + ", ".join(fact.name for fact in asked) + "."
            reply = _listed(asked)
            left_tokens -= len(asked) * _BATCHED_TOKENS + 10
        else:
            asked = [rng.choice(facts)]
            text, reply = question(rng, asked[0].name), _answered(asked[0])
            left_tokens -= _TURN_TOKENS
        parts += [user(head + text), *assistant(reply)]
        head = ""
    return parts


def echo_parts(rng: Random) -> list[Part]:
    """A user asks for a list of words to be repeated."""
    words = rng.choices(VALUES + NOUNS, k=rng.randint(8, 40))
    text = " ".join(word if rng.random() < 0.9 else str(rng.randrange(100)) for word in words)
    return [user(f"Repeat: {text}"), *assistant([Part(f"- {text}", 1.0)])]


def _answered(fact: Fact) -> list[Part]:
    opening, middle, end = re.split(r" \{\w+\}", ANSWER)
    return [
        Part(opening, FRAME_WEIGHT),
        Part(f" {fact.name}", NAME_WEIGHT),
        Part(middle, FRAME_WEIGHT),
        Part(f" {fact.value}", VALUE_WEIGHT),
        Part(end, FRAME_WEIGHT),
    ]


def _listed(facts: list[Fact]) -> list[Part]:
    parts: list[Part] = []
    for i, fact in enumerate(facts):
        start = "-" if i == 0 else "\n-"
        parts += [
            Part(start, FRAME_WEIGHT),
            Part(f" {fact.name}", NAME_WEIGHT),
            Part(":", FRAME_WEIGHT),
            Part(f" {fact.value}", VALUE_WEIGHT),
        ]
    return parts


def _task_turns(task: Task, weight: float = 1.0) -> list[Part]:
    return turns([*task.messages, task.reference], weight)
