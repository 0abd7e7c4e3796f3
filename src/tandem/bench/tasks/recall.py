"""Recall: a list of facts, then a question about one of them, at any context length.

It shows whether the right keys and values are found again after caching, moving, evicting or
quantising them: one wrong block and the answer is another word.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tandem.bench.tasks.task import ADJECTIVES, NOUNS, VALUES, Task, is_held_out

CountTokens = Callable[[str], float]

INTROS: tuple[str, ...] = (
    "Here is a list of names and values.",
    "Please remember these facts.",
    "These are my notes.",
    "Read this list carefully.",
    "Here are some entries from my book.",
    "Keep the following in mind.",
)

QUESTIONS: tuple[str, ...] = (
    "What is the value of {name}?",
    "Which value belongs to {name}?",
    "What did I write for {name}?",
    "Tell me the value of {name}.",
    "Please look up {name}.",
    "What about {name}?",
    "Now find {name}.",
)

ANSWER = "The value of {name} is {value}."

# A share of the names repeats a word of an earlier name, so one word alone does not find the fact.
_LOOKALIKE_SHARE = 0.2
_NUMBER_SHARE = 0.2
# Chat markup and the sentences around the list.
_FRAME_TOKENS = 40


@dataclass(frozen=True)
class Fact:
    """One entry of the list."""

    name: str
    value: str

    @property
    def line(self) -> str:
        return f"- {self.name}: {self.value}"


def recall(rng: Random, context_tokens: int, count_tokens: CountTokens) -> Task:
    """A task whose prompt is about `context_tokens` long; its name never occurs in training.

    `count_tokens` gives the tokens of a text in the tokenizer of the model under test.
    """
    budget_tokens: float = context_tokens - _FRAME_TOKENS
    facts: list[Fact] = []
    names: list[str] = []
    while budget_tokens > 0:
        facts.append(draw_fact(rng, names))
        budget_tokens -= count_tokens(facts[-1].line + "\n")
    asked = Fact(draw_name(rng, names, held_out=True), draw_value(rng))
    facts.insert(rng.randrange(len(facts) + 1), asked)
    answer = ANSWER.format(name=asked.name, value=asked.value)
    return Task(
        kind="recall",
        messages=({"role": "user", "content": prompt(rng, facts, asked.name)},),
        answer=asked.value,
        reference={"role": "assistant", "content": answer},
    )


def prompt(rng: Random, facts: list[Fact], name: str) -> str:
    """The user turn: an introduction, the list, and the first question."""
    lines = "\n".join(fact.line for fact in facts)
    return f"{rng.choice(INTROS)}\n{lines}\n{question(rng, name)}"


def question(rng: Random, name: str) -> str:
    """One of several phrasings of the question."""
    return rng.choice(QUESTIONS).format(name=name)


def draw_fact(rng: Random, names: list[str]) -> Fact:
    """A fact with a name not yet in `names`, which gains it."""
    return Fact(draw_name(rng, names, held_out=False), draw_value(rng))


def draw_name(rng: Random, names: list[str], *, held_out: bool) -> str:
    """A new "adjective noun" from the training or from the held-out share of all pairs."""
    while True:
        adjective, noun = rng.choice(ADJECTIVES), rng.choice(NOUNS)
        if names and rng.random() < _LOOKALIKE_SHARE:
            other = rng.choice(names).split()
            adjective, noun = rng.choice(((other[0], noun), (adjective, other[1])))
        name = f"{adjective} {noun}"
        if name not in names and is_held_out(f"recall {name}") == held_out:
            names.append(name)
            return name


def draw_value(rng: Random) -> str:
    """A word, or at times a number of two digits."""
    if rng.random() < _NUMBER_SHARE:
        return str(rng.randrange(10, 100))
    return rng.choice(VALUES)
