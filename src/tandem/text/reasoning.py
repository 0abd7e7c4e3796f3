"""Reasoning of a model that thinks before it answers: `<think>...</think>` and then the answer, as
Qwen3 and DeepSeek R1 write it. Splits a text that still arrives, and lets a grammar begin behind
the reasoning.

Blank space at both ends of the reasoning and before the answer disappears with the tags.
"""

import re
from collections.abc import Set
from enum import Enum, StrEnum, auto

from tandem.text.grammars import within_grammar
from tandem.text.stop import partial_match_chars

THINK_TAG = "<think>"
END_THINK_TAG = "</think>"
_BLANK = re.compile(r"\s*")


class ReasoningFormat(StrEnum):
    """How a model reasons, named as vLLM names its parsers: Qwen3 says by a tag that it does,
    DeepSeek R1 does so unless its prompt has ended the reasoning."""

    QWEN3 = "qwen3"
    DEEPSEEK_R1 = "deepseek_r1"


class ReasoningStart(Enum):
    """How an answer begins, as far as its prompt decides that."""

    # Without reasoning.
    NONE = auto()
    # With reasoning if there is a tag.
    IF_TAGGED = auto()
    # In the middle of reasoning, whose tag stands in the prompt or is left out.
    INSIDE = auto()


def reasoning_format(templates: str) -> ReasoningFormat | None:
    """That of a model with these chat templates, if they name both tags: then prompts tell which
    answers begin inside of reasoning."""
    knows_both = THINK_TAG in templates and END_THINK_TAG in templates
    return ReasoningFormat.QWEN3 if knows_both else None


def reasoning_start(
    reasoning: ReasoningFormat, prompt_end: str, continued: str | None
) -> ReasoningStart:
    """How the answer to a prompt with that end begins; with `continued`, the message of the
    assistant that it goes on with."""
    if continued is not None:
        is_open = continued.rfind(THINK_TAG) > continued.rfind(END_THINK_TAG)
        return ReasoningStart.INSIDE if is_open else ReasoningStart.NONE
    prompt_end = prompt_end.rstrip()
    if prompt_end.endswith(END_THINK_TAG):
        return ReasoningStart.NONE
    if prompt_end.endswith(THINK_TAG) or reasoning is ReasoningFormat.DEEPSEEK_R1:
        return ReasoningStart.INSIDE
    return ReasoningStart.IF_TAGGED


class _Stage(Enum):
    BEGINNING = auto()
    REASONING_BEGINS = auto()
    REASONING = auto()
    ANSWER_BEGINS = auto()
    ANSWER = auto()


class ReasoningSplitter:
    """Splits one answer into reasoning and what is said. The work is linear in the text."""

    def __init__(self, start: ReasoningStart) -> None:
        self._start = start
        is_plain = start is ReasoningStart.NONE
        self._stage = _Stage.ANSWER if is_plain else _Stage.BEGINNING
        # Blank space that may be one end of something, and the beginning of a tag.
        self._blank: list[str] = []
        self._held = ""
        # Whether any of the answer was reasoning, even an empty one.
        self.has_reasoned = start is ReasoningStart.INSIDE

    @property
    def has_ended(self) -> bool:
        """Whether no more reasoning comes."""
        return self._stage in (_Stage.ANSWER_BEGINS, _Stage.ANSWER)

    def feed(self, text: str) -> tuple[str, str]:
        """What is certain now of the reasoning, and of the rest."""
        return self._split(text, last=False)

    def finish(self) -> tuple[str, str]:
        """What was held back, since no more text comes."""
        return self._split("", last=True)

    def _split(self, text: str, *, last: bool) -> tuple[str, str]:
        text, self._held = self._held + text, ""
        reasoning = ""
        if self._stage is _Stage.BEGINNING:
            text = self._read_beginning(text, last)
        if self._stage is _Stage.REASONING_BEGINS:
            text = text.lstrip()
            self._stage = _Stage.REASONING if text else self._stage
        if self._stage is _Stage.REASONING:
            reasoning, text = self._read_reasoning(text, last)
        if self._stage is _Stage.ANSWER_BEGINS:
            text = text.lstrip()
            self._stage = _Stage.ANSWER if text else self._stage
        return reasoning, text if self._stage is _Stage.ANSWER else ""

    def _read_beginning(self, text: str, last: bool) -> str:
        """Gives what of the text was not read."""
        found = _BLANK.match(text)
        at = found.end() if found else 0
        self._blank.append(text[:at])
        text = text[at:]
        if text.startswith(THINK_TAG):
            self._stage, self._blank = _Stage.REASONING_BEGINS, []
            self.has_reasoned = True
            return text[len(THINK_TAG) :]
        if not last and THINK_TAG.startswith(text):
            self._held = text
            return ""
        if self._start is ReasoningStart.INSIDE:
            self._stage, self._blank = _Stage.REASONING_BEGINS, []
            return text
        text = "".join((*self._blank, text))
        self._stage, self._blank = _Stage.ANSWER, []
        return text

    def _read_reasoning(self, text: str, last: bool) -> tuple[str, str]:
        place = text.find(END_THINK_TAG)
        if place >= 0:
            self._stage = _Stage.ANSWER_BEGINS
            said, rest = text[:place], text[place + len(END_THINK_TAG) :]
        else:
            certain = len(text) if last else len(text) - partial_match_chars(text, END_THINK_TAG)
            said, rest, self._held = text[:certain], "", text[certain:]
        words = said.rstrip()
        if not words:
            self._blank.append(said)
            words_before = ""
        else:
            words_before = "".join(self._blank)
            self._blank = [said[len(words) :]]
        return words_before + words, rest


def after_reasoning(grammar: str, start: ReasoningStart, tag_tokens: Set[str]) -> str:
    """Texts of this grammar behind reasoning, which is any text; `tag_tokens` are those of the two
    tags that are tokens of their own. Raises `GrammarError`."""
    if start is ReasoningStart.NONE:
        return grammar
    tag = THINK_TAG if THINK_TAG in tag_tokens else f'"{THINK_TAG}"'
    escaped = END_THINK_TAG.replace("/", r"\/")
    rules = [
        # Neither as a token nor spelled: the first such tag is the end.
        f"reasoning: THOUGHTS {END_THINK_TAG}",
        rf"THOUGHTS: /(.|\n)*/ & ~/(.|\n)*{escaped}(.|\n)*/",
    ]
    if END_THINK_TAG not in tag_tokens:
        rules = [rf"reasoning[lazy]: /(.|\n)*{escaped}/"]
    begun = "reasoning BLANK @answer"
    if start is ReasoningStart.IF_TAGGED:
        begun = f"({tag} reasoning BLANK)? @answer"
    outer = [f"start: {begun}", *rules, r"BLANK: /[ \t\r\n]{0,8}/"]
    return within_grammar("\n".join(outer), "answer", grammar)
