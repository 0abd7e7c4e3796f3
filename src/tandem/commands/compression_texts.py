"""The texts that a compressed model is fitted to and judged by: of a file, or tasks of the bundled
suites with their right replies. One in five is held out."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from tandem.bench.tasks.arithmetic import arithmetic
from tandem.bench.tasks.fluency import fluency
from tandem.bench.tasks.recall import recall
from tandem.bench.tasks.task import Message, Task
from tandem.bench.tasks.tool_call import tool_call
from tandem.facts.errors import InvalidConfiguration, InvalidRequest
from tandem.text.chat import ChatOptions, ChatTemplate
from tandem.text.files import read_tokenizer_files
from tandem.text.tokenizer import Tokenizer

HELD_OUT_ONE_IN = 5
# Of a text at a time: attention costs its square, and long texts say little that is new.
PIECE_TOKENS = 1024
# What is left at the end of a text is too short to tell much.
FEWEST_TOKENS = 8
# A file of plain text is cut between lines, into texts of about so many characters.
PLAIN_CHARS = 4096
RECALL_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Sample:
    """A chat, or a plain text where it has no messages; `place` says where it is from."""

    place: str
    text: str = ""
    messages: Sequence[Message] = ()
    tools: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of a text; those from `first` on are what a model would say: the reply to a chat,
    or everything."""

    ids: tuple[int, ...]
    first: int = 0


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """Texts to fit to, and texts to judge by."""

    calibration: list[Encoded]
    held_out: list[Encoded]


def read_samples(path: Path) -> Iterator[Sample]:
    """Of a .jsonl file each line: a string, or an object with `messages` (and `tools`) or `text`;
    of any other its text. Raises `InvalidConfiguration` naming the line."""
    try:
        with path.open(encoding="utf-8") as lines:
            yield from _objects(path, lines) if path.suffix == ".jsonl" else _plain(path, lines)
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidConfiguration(f"--calibration: {path} cannot be read: {problem}") from problem


def _objects(path: Path, lines: Iterator[str]) -> Iterator[Sample]:
    for number, line in enumerate(lines, 1):
        place = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as problem:
            raise InvalidConfiguration(f"{place} is no JSON: {problem}") from problem
        fields = {"text": entry} if isinstance(entry, str) else entry
        fields = fields if isinstance(fields, dict) else {}
        if isinstance(fields.get("text"), str):
            yield Sample(place, text=fields["text"])
        elif isinstance(fields.get("messages"), list):
            yield Sample(place, messages=fields["messages"], tools=fields.get("tools") or ())
        else:
            raise InvalidConfiguration(
                f"{place} is neither a string nor an object with text or messages"
            )


def _plain(path: Path, lines: Iterator[str]) -> Iterator[Sample]:
    held: list[str] = []
    chars = 0
    for line in lines:
        held.append(line)
        chars += len(line)
        if chars >= PLAIN_CHARS:
            yield Sample(str(path), text="".join(held))
            held, chars = [], 0
    yield Sample(str(path), text="".join(held))


WHOLE_CHAT = ChatOptions(add_generation_prompt=False)


class TextEncoder:
    """From samples to token ids, with the tokenizer and chat template of a checkpoint."""

    def __init__(self, directory: Path) -> None:
        files = read_tokenizer_files(directory)
        self.tokenizer, templates = Tokenizer.of_files(files), files.chat_templates
        self._chat = ChatTemplate(templates, self.tokenizer.special_tokens) if templates else None

    def encode(self, sample: Sample) -> Encoded:
        """Raises `InvalidConfiguration` where the chat template refuses the messages."""
        if not sample.messages:
            return Encoded(self.tokenizer.encode(sample.text, add_special_tokens=True))
        if self._chat is None:
            text = "\n".join(_content(message) for message in sample.messages)
            return Encoded(self.tokenizer.encode(text, add_special_tokens=True))
        prompt = ""
        try:
            text = self._chat.render(sample.messages, sample.tools, WHOLE_CHAT)
            if _is_reply(sample.messages[-1]):
                prompt = self._chat.render(sample.messages[:-1], sample.tools, ChatOptions())
        except InvalidRequest as problem:
            raise InvalidConfiguration(f"{sample.place}: {problem}") from problem
        if not prompt or not text.startswith(prompt):
            return Encoded(self.tokenizer.encode(text, add_special_tokens=False))
        asked, said = (
            self.tokenizer.encode(each, add_special_tokens=False)
            for each in (prompt, text[len(prompt) :])
        )
        return Encoded(asked + said, len(asked))

    def takes(self, sample: Sample) -> bool:
        """Whether the chat template refuses nothing of it."""
        try:
            self.encode(sample)
        except InvalidConfiguration:
            return False
        return True


def _is_reply(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else ""


def task_samples(encoder: TextEncoder, seed: int) -> Iterator[Sample]:
    """Without end: tasks of all kinds in turns, each with a reply that is right; without those that
    call tools where the chat template knows none."""

    def tokens(text: str) -> float:
        return len(encoder.tokenizer.encode(text, add_special_tokens=False))

    kinds = (lambda rng: recall(rng, RECALL_TOKENS, tokens), arithmetic, tool_call, fluency)
    for number in count():
        task: Task = kinds[number % len(kinds)](Random(f"compression {seed} {number}"))
        messages = (*task.messages, task.reference)
        sample = Sample(f"task {number}", messages=messages, tools=task.tools)
        if not task.tools or encoder.takes(sample):
            yield sample


@dataclass(frozen=True, slots=True)
class TextBudget:
    """How many tokens there are to be of either kind, and at most in one piece of a text."""

    calibration_tokens: int
    held_out_tokens: int
    piece_tokens: int


def gather_texts(samples: Iterator[Sample], encoder: TextEncoder, budget: TextBudget) -> TokenTexts:
    """Pieces of the samples until the budget is spent, or the samples are. Raises
    `InvalidConfiguration` when there are too few of either kind."""
    texts = TokenTexts([], [])
    left = {False: budget.calibration_tokens, True: budget.held_out_tokens}
    number = 0
    for sample in samples:
        for piece in _pieces(encoder.encode(sample), budget.piece_tokens):
            number += 1
            held_out = number % HELD_OUT_ONE_IN == 0
            kept = Encoded(piece.ids[: left[held_out]], piece.first)
            if held_out and kept.first < len(kept.ids):
                texts.held_out.append(kept)
            elif not held_out and kept.ids:
                texts.calibration.append(kept)
            left[held_out] -= len(kept.ids)
        if not any(left.values()):
            break
    if not texts.held_out and number >= HELD_OUT_ONE_IN:
        raise InvalidConfiguration(
            f"--held-out-tokens is {budget.held_out_tokens}; no reply ends up among so few, "
            "expected some thousands"
        )
    if not texts.held_out:
        raise InvalidConfiguration(
            f"--calibration has {number} texts of {FEWEST_TOKENS} tokens or more; expected at "
            f"least {HELD_OUT_ONE_IN}, since one in {HELD_OUT_ONE_IN} is held out"
        )
    return texts


def _pieces(text: Encoded, piece_tokens: int) -> Iterator[Encoded]:
    for start in range(0, len(text.ids), piece_tokens):
        ids = text.ids[start : start + piece_tokens]
        if len(ids) >= FEWEST_TOKENS:
            yield Encoded(ids, min(max(text.first - start, 1), len(ids)))
