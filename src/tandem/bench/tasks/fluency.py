"""Fluency sanity: whole, varied sentences. No judge, only what breaks first.

A broken cache or a bad quantisation shows as loops, as foreign characters or as an answer that
never ends; whether what is said is true, this cannot tell.
"""

import re
from random import Random

from tandem.bench.tasks.task import Task, read_data

_DATA = read_data("fluency.toml")
TOPICS: tuple[str, ...] = tuple(_DATA["topics"])
REQUESTS: tuple[str, ...] = tuple(_DATA["requests"])
# About half of the words of any English text are among these; a salad of words has few of them.
_COMMON = frozenset(_DATA["common_words"].split())
_COMMON_SHARE = 0.2

_FEWEST_WORDS = 5
_RUN_WORDS = 4
_MOST_REPEATED_SHARE = 0.3
_READABLE_SHARE = 0.95


def fluency(rng: Random) -> Task:
    """An open request; any fluent reply is right."""
    content = rng.choice(REQUESTS).format(topic=rng.choice(TOPICS))
    reference = {"role": "assistant", "content": "Here is what I know about it. It is quite old."}
    return Task("fluency", ({"role": "user", "content": content},), "", reference)


def is_fluent(text: str) -> bool:
    """Enough words, as many common ones as English has, a sentence that ends, readable characters,
    and few runs of four words that were said before."""
    words = re.findall(r"[^\W_]+(?:['’][^\W_]+)?", text.lower())
    if len(words) < _FEWEST_WORDS or not re.search(r"[.!?]", text):
        return False
    if sum(word in _COMMON for word in words) < _COMMON_SHARE * len(words):
        return False
    readable = sum(c.isalnum() or c.isspace() or c in ".,;:!?'’\"“”()-–—*\n" for c in text)
    if readable < _READABLE_SHARE * len(text):
        return False
    runs = list(zip(*(words[start:] for start in range(_RUN_WORDS)), strict=False))
    return 1 - len(set(runs)) / len(runs) <= _MOST_REPEATED_SHARE
