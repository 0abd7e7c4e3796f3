"""What a sample votes for: the answer that is read out of its text. All readers take time linear in
a bounded text, whatever the model wrote and the client asked for."""

import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tandem.facts.errors import InvalidRequest

AnswerReader = Callable[[str], str | None]

# Answers stand at the end of a text: before so many characters none is looked for. A JSON text is
# read whole or not at all.
TEXT_CHARS: Final = 16 << 10
JSON_CHARS: Final = 64 << 10
# Longer answers are compared by so many characters.
ANSWER_CHARS: Final = 512
MARK_CHARS: Final = 128
_AFTER, _JSON = "after:", "json:"
_KNOWN = "last-number, last-line, boxed, text, after:MARK or json:PATH"
# Linear: no two parts can take the same character.
_NUMBER = re.compile(r"\d[\d,_]*(?:\.\d+)?")
_BOX = "\\boxed{"
_BOX_CHARS = 4096
_FENCE = "```"
# Text that is none, is nested too deeply, or has numbers beyond what is written again.
_BROKEN_JSON = (msgspec.DecodeError, RecursionError, ValueError, OverflowError)


def answer_reader(vote: str) -> AnswerReader:
    """Reads the answer that `vote` names out of a text; None where there is none. Raises
    `InvalidRequest` for a name that nobody knows."""
    named: dict[str, AnswerReader] = {
        "last-number": last_number,
        "last-line": last_line,
        "boxed": last_box,
        "text": _normal,
    }
    if vote in named:
        return _bounded(named[vote])
    if vote.startswith(_AFTER) and 0 < len(mark := vote[len(_AFTER) :]) <= MARK_CHARS:
        return _bounded(lambda text: after_mark(text, mark))
    if vote.startswith(_JSON) and 0 < len(path := vote[len(_JSON) :]) <= MARK_CHARS:
        steps = path.split(".")
        return _bounded(lambda text: json_value(text, steps), JSON_CHARS)
    shown = repr(vote[:64])
    raise InvalidRequest("scaling.vote", f"must be {_KNOWN}, got {shown}")


def last_number(text: str) -> str | None:
    """The last number, without what only separates its digits, and with no more of them than it
    takes: 1,200.50 is 1200.5."""
    last = deque(_NUMBER.finditer(text), maxlen=1)
    if not last:
        return None
    whole, _, fraction = last[0][0].replace(",", "").replace("_", "").partition(".")
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    value = f"{whole}.{fraction}" if fraction else whole
    # A sign that follows a digit or a word is one of subtraction, or a hyphen.
    begin = last[0].start()
    is_negative = text[max(0, begin - 1) : begin] == "-" and not text[max(0, begin - 2)].isalnum()
    return f"-{value}" if is_negative and value != "0" else value


def last_line(text: str) -> str | None:
    """The last line with anything on it."""
    return _normal(text.rstrip().rpartition("\n")[2])


def last_box(text: str) -> str | None:
    """What stands in the last \\boxed{...}, as answers to mathematical questions end."""
    _, found, rest = text.rpartition(_BOX)
    depth = 1 if found else 0
    for place, letter in enumerate(rest[:_BOX_CHARS] if found else ""):
        depth += (letter == "{") - (letter == "}")
        if not depth:
            return _normal(rest[:place])
    return None


def after_mark(text: str, mark: str) -> str | None:
    """The rest of the line after the last `mark`."""
    _, found, rest = text.rpartition(mark)
    return _normal(rest.lstrip().partition("\n")[0]) if found else None


def json_value(text: str, steps: list[str]) -> str | None:
    """The value at these keys and places of the JSON that the text is, or that its last fenced
    block is; equal values are equal texts."""
    body = text.strip()
    if body.endswith(_FENCE):
        body = body[: -len(_FENCE)].rpartition(_FENCE)[2].removeprefix("json")
    try:
        value: Any = msgspec.json.decode(body)
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
        return _encoded(value)
    except (*_BROKEN_JSON, LookupError, TypeError):
        return None


def canonical_json(text: str) -> str:
    """The same text for equal values, however they are written; what is no JSON, as it is."""
    try:
        return _encoded(msgspec.json.decode(text))
    except _BROKEN_JSON:
        return text


def _encoded(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _normal(text: str) -> str | None:
    """Without what is no part of an answer: case, blanks, marks of emphasis, a full stop."""
    words = " ".join(text.split()).casefold()
    return words.strip("*_`\"' ").rstrip(".!").strip("*_`\"' ") or None


def _bounded(read: AnswerReader, text_chars: int = TEXT_CHARS) -> AnswerReader:
    def answer(text: str) -> str | None:
        found = read(text[-text_chars:])
        return found[:ANSWER_CHARS] if found else None

    return answer
