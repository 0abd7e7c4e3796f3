"""Shields special tokens: what spells a token of the template in a client's text never becomes one.

A chat template mixes its own tokens with what clients wrote. Before it runs, marks are put into the
clients' strings: one private character that occurs in none of them. A mark stands inside of every
spelling of such a token, and where a string, or a part of it that the template may cut out, could
be one side of a spelling whose other side stands elsewhere. What the template made of that shows
which marks cut a spelling. The prompt is cut there, and its pieces are tokenised one by one, so
that no piece holds a spelling that is not the template's. All other marks are taken out: text
without such spellings is tokenised as if it had never been marked.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.facts.errors import InvalidRequest
from tandem.text.aho_corasick import AhoCorasick
from tandem.text.call_markup import CLOSE_TAG, OPEN_TAG
from tandem.text.reasoning import END_THINK_TAG, THINK_TAG
from tandem.text.tokenizer import Tokenizer

_ANSWER_TAGS = frozenset({OPEN_TAG, CLOSE_TAG, THINK_TAG, END_THINK_TAG})
# Templates write a role's token in one piece or around the role's name.
_ROLES = ("system", "developer", "user", "assistant", "tool")
# Private characters, which no font and no tokenizer gives a meaning.
_MARKS = range(0xF0000, 0xF0100)
# The second half of such an escape; the first one is the same for all.
_ESCAPED_MARK = re.compile(r"\\udc([0-9a-f]{2})")
_PREFIX_CHARS = 2
# A search lets no other thread run before it ends: so many characters take it milliseconds.
WINDOW_CHARS = 256 << 10
# So often may a template take out what it made by taking out.
_NESTED_CUTS = 4


class Shield:
    """Marks the spellings of `texts`, and what may become one where the template joins strings or
    takes out one of `cuts`. One character alone cannot be cut, and stays. Where tokens are found
    only behind a normalizer, `normalized` gives a text with the letters that it has there: what
    needs a mark then goes on in these letters."""

    def __init__(
        self,
        texts: Iterable[str],
        cuts: Iterable[str] = (),
        normalized: Callable[[str], str] | None = None,
    ) -> None:
        self._normalized = normalized
        texts = [text for text in dict.fromkeys(texts) if len(text) > 1]
        cuts = sorted(dict.fromkeys(cut for cut in cuts if cut), key=len, reverse=True)
        self._forward = AhoCorasick(texts)
        self._backward = AhoCorasick([text[::-1] for text in texts])
        self._longest = max(map(len, texts), default=0)
        # Most texts hold none of these, which is quickly known.
        self._prefix = _Search(text[:_PREFIX_CHARS] for text in texts)
        self._first, self._last = _Search(t[0] for t in texts), _Search(t[-1] for t in texts)
        self._cut = _Search(cuts)

    def touches(self, *values: object) -> bool:
        """Whether any string in these values, however deep, needs a mark."""
        return any(self._marking(text)[1] for text in _strings(values))

    def marked(self, value: Any, mark: str) -> Any:
        """`value` with `mark` at every such place; keys of objects are strings too. As deep as the
        value is nested, the work is recursive."""
        match value:
            case str():
                text, places = self._marking(value)
                return _cut_at(text, places, mark)
            case Mapping():
                return {self.marked(k, mark): self.marked(v, mark) for k, v in value.items()}
            case list() | tuple():
                return [self.marked(each, mark) for each in value]
        return value

    def pieces(self, prompt: str, mark: str) -> list[str]:
        """A rendered prompt, cut where a mark stands inside of a spelling; templates may have
        written the mark as JSON does."""
        escaped = mark.encode("utf-16-be").hex()
        parts = prompt.replace(f"\\u{escaped[:4]}\\u{escaped[4:]}", mark).split(mark)
        prompt = "".join(parts)
        spellings = iter(self._spellings(prompt))
        begin = end = 0
        pieces, piece_begin, place = [], 0, 0
        for part in parts[:-1]:
            place += len(part)
            while end <= place and (spelling := next(spellings, None)):
                begin, end = spelling
            if begin < place < end:
                pieces.append(prompt[piece_begin:place])
                piece_begin = place
        return [piece for piece in (*pieces, prompt[piece_begin:]) if piece]

    def _spellings(self, text: str) -> list[tuple[int, int]]:
        """Where spellings begin and end, in order. What overlaps is one."""
        spellings: list[tuple[int, int]] = []
        matches = ((last + 1 - chars, last + 1) for last, chars in self._matches(text))
        for begin, end in sorted(matches):
            if spellings and begin < spellings[-1][1]:
                begin, end = spellings[-1][0], max(end, spellings.pop()[1])
            spellings.append((begin, end))
        return spellings

    def _matches(self, text: str) -> Iterator[tuple[int, int]]:
        """The place of the last character of each spelling, and how many characters it has."""
        forward = self._forward
        found = self._prefix.next(text)
        while found:
            node, at = 0, found[0]
            while at < len(text):
                node = forward.step(node, text[at])
                if not node:
                    break
                if spelling := forward.matched(node):
                    yield at, len(spelling)
                at += 1
            found = self._prefix.next(text, at)

    def _marking(self, text: str) -> tuple[str, list[int]]:
        """The text, in the letters in which it goes on, and where marks belong in it."""
        letters = text if self._normalized is None else self._normalized(text)
        places = self._places(letters)
        if places or letters == text:
            return letters, places
        return text, self._places(text)

    def _places(self, text: str) -> list[int]:
        """Before which characters a mark belongs, in order."""
        # Before its last character: that cuts all spellings that end there.
        places = {last for last, _ in self._matches(text)}
        begin = 0
        cuts = self._cut.all(text)
        for cut_begin, cut_end in cuts:
            places.update(self._edges(text, begin, cut_begin))
            begin = cut_end
        places.update(self._edges(text, begin, len(text)))
        if cuts and self._hides(text):
            places.update(place for cut in cuts for place in cut)
        return sorted(places)

    def _hides(self, text: str) -> bool:
        """Whether a spelling stands there once all cuts are taken out, also those that only appear
        when others are."""
        for _ in range(_NESTED_CUTS):
            cuts = self._cut.all(text)
            if not cuts:
                break
            begins, ends = (
                [0, *(end for _, end in cuts)],
                [*(begin for begin, _ in cuts), len(text)],
            )
            text = "".join(text[begin:end] for begin, end in zip(begins, ends, strict=True))
        return any(True for _ in self._matches(text))

    def _edges(self, text: str, begin: int, end: int) -> Iterator[int]:
        """The ends of text[begin:end], which templates may strip of blank space, where they are
        one side of a spelling."""
        part = text[begin:end].rstrip()
        end = begin + len(part)
        part = part.lstrip()
        begin = end - len(part)
        head, tail = part[: self._longest], part[-self._longest :]
        if self._last.next(head) and _is_side(self._backward, head[::-1]):
            yield begin
        if self._first.next(tail) and _is_side(self._forward, tail):
            yield end


def _is_side(automaton: AhoCorasick, text: str) -> bool:
    """Whether `text` ends with the beginning of a string. Letters and digits alone do not count:
    templates compare and look up words, which a mark would change."""
    node = 0
    for char in text:
        node = automaton.step(node, char)
    chars = automaton.held_chars(node)
    return chars > 0 and not text[-chars:].isalnum()


def unused_mark(*values: object) -> str:
    """A character that these values do not hold, nor write as JSON does. Raises `InvalidRequest`
    where they hold all."""
    used = {char for text in _strings(values) if not text.isascii() for char in text}
    for text in _strings(values):
        used.update(chr(_MARKS[int(last, 16)]) for last in _ESCAPED_MARK.findall(text))
    for code in _MARKS:
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequest("messages", "hold every private character of Unicode's plane 15")


class _Search:
    """Finds these strings, of which those that begin others come behind them. Of long texts so much
    at a time that the event loop is heard in between."""

    def __init__(self, strings: Iterable[str]) -> None:
        strings = list(dict.fromkeys(strings))
        self._longest = max(map(len, strings), default=0)
        self._pattern = re.compile("|".join(map(re.escape, strings))) if strings else None

    def next(self, text: str, begin: int = 0) -> tuple[int, int] | None:
        """Where the first at or behind `begin` begins and ends."""
        if self._pattern is None:
            return None
        while begin < len(text):
            end = begin + WINDOW_CHARS
            # Of what begins in the window, all is seen.
            found = self._pattern.search(text, begin, end + self._longest)
            if found and found.start() < end:
                return found.span()
            begin = end
        return None

    def all(self, text: str) -> list[tuple[int, int]]:
        """As many as there are beside each other."""
        spans, found = [], self.next(text)
        while found:
            spans.append(found)
            found = self.next(text, found[1])
        return spans


def _cut_at(text: str, places: Sequence[int], mark: str) -> str:
    if not places:
        return text
    bounds = [0, *places, len(text)]
    return mark.join(text[bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1))


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


@dataclass(frozen=True, slots=True)
class ClientText:
    """The shields of one checkpoint: `answer` for the content of the assistant's messages, `other`
    for everything else that clients write, and for cutting the prompt."""

    other: Shield
    answer: Shield

    def touches(self, messages: Sequence[Mapping[str, Any]], *others: object) -> bool:
        """Whether anything of it needs a mark."""
        contents = [m.get("content") for m in messages if _is_answer(m)]
        return self.other.touches(*map(_without_answer, messages), *others) or self.answer.touches(
            *contents
        )

    def marked_messages(self, messages: Sequence[Mapping[str, Any]], mark: str) -> Any:
        """The messages with marks in them; see `Shield.marked`."""
        marked = []
        for message in messages:
            each = self.other.marked(_without_answer(message), mark)
            if _is_answer(message):
                each["content"] = self.answer.marked(message.get("content"), mark)
            marked.append(each)
        return marked


def client_text(
    tokenizer: Tokenizer, templates: Mapping[str, str], cuts: Collection[str]
) -> ClientText:
    """Shields against the special tokens of `tokenizer`, and against those that the `templates`
    write; `cuts` are what these take out of strings."""
    specials = {tokenizer.token_name(i) for i in tokenizer.special_token_ids}
    source = "\n".join(templates.values())
    written = {text for text in tokenizer.added_tokens() if _is_written(text, source)}
    still = tokenizer.find_as_written(specials | written)
    texts = sorted({*specials, *written, *still})
    normalized = tokenizer.normalized if still else None
    shield = Shield(texts, cuts, normalized)
    answers = [text for text in texts if text in specials or text not in _ANSWER_TAGS]
    if len(answers) == len(texts):
        return ClientText(shield, shield)
    return ClientText(shield, Shield(answers, cuts, normalized))


def _is_written(text: str, source: str) -> bool:
    """Whether templates write this token. Words, blank space and rules are no tags: there are
    checkpoints that add those, and what clients write is full of them."""
    if text[:1].isalnum() or text[-1:].isalnum() or text.strip() != text:
        return False
    if not any(char.isalpha() for char in text):
        return False
    return text in source or any(
        role in text and all(side in source for side in text.split(role, 1)) for role in _ROLES
    )


def _is_answer(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant"


def _without_answer(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _is_answer(message):
        return message
    return {name: None if name == "content" else value for name, value in message.items()}
