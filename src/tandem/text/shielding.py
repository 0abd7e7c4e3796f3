"""Clients' text is text: what spells a special token in it never becomes one.

A chat template mixes its own special tokens with what clients wrote. Before it runs, a mark is put
inside of every such spelling in the clients' strings: one private character that occurs in none of
them. The prompt is then cut at the marks, and its pieces are tokenised one by one, so that no piece
holds a spelling that is not the template's. Text without such spellings is not touched at all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tandem.facts.errors import InvalidRequest
from tandem.text.aho_corasick import AhoCorasick

# Private characters, which no font and no tokenizer gives a meaning.
_MARKS = range(0xF0000, 0xF0100)
_PREFIX_CHARS = 2


class Shield:
    """Marks the spellings of `special_texts`. One character alone cannot be cut, and stays."""

    def __init__(self, special_texts: Sequence[str]) -> None:
        texts = [text for text in special_texts if len(text) > 1]
        self._automaton = AhoCorasick(texts)
        # Most texts hold none of these, which is quickly known.
        self._prefixes = tuple(dict.fromkeys(text[:_PREFIX_CHARS] for text in texts))

    def touches(self, *values: object) -> bool:
        """Whether any string in these values, however deep, spells a special token."""
        return any(self._spells(text) for text in _strings(values))

    def marked(self, value: Any, mark: str) -> Any:
        """`value` with `mark` inside of every such spelling; keys of objects are strings too."""
        match value:
            case str():
                return self._mark(value, mark) if self._spells(value) else value
            case Mapping():
                return {self.marked(k, mark): self.marked(v, mark) for k, v in value.items()}
            case list() | tuple():
                return [self.marked(each, mark) for each in value]
        return value

    def _spells(self, text: str) -> bool:
        if not any(prefix in text for prefix in self._prefixes):
            return False
        automaton, node = self._automaton, 0
        for char in text:
            node = automaton.step(node, char)
            if automaton.matched(node):
                return True
        return False

    def _mark(self, text: str, mark: str) -> str:
        automaton, node = self._automaton, 0
        parts, begin = [], 0
        for place, char in enumerate(text):
            node = automaton.step(node, char)
            if automaton.matched(node):
                # Before its last character: that cuts all spellings that end here.
                parts.append(text[begin:place])
                begin = place
        return mark.join((*parts, text[begin:]))


def unused_mark(*values: object) -> str:
    """A character that these values do not hold. Raises `InvalidRequest` where they hold all."""
    used = {char for text in _strings(values) if not text.isascii() for char in text}
    for code in _MARKS:
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequest("messages", "hold every private character of Unicode's plane 15")


def pieces(prompt: str, mark: str) -> list[str]:
    """A rendered prompt, cut where a mark stands; templates may have written it as JSON does."""
    escaped = mark.encode("utf-16-be").hex()
    prompt = prompt.replace(f"\\u{escaped[:4]}\\u{escaped[4:]}", mark)
    return [piece for piece in prompt.split(mark) if piece]


def _strings(values: Iterable[object]) -> Iterator[str]:
    stack = [*values]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            stack += value.keys()
            stack += value.values()
        elif isinstance(value, list | tuple):
            stack += value
