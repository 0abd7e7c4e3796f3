"""Text model: tokenizer, chat template, sampling defaults and tool format of one checkpoint."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.facts.client_fields import client_fields
from tandem.facts.errors import InvalidConfiguration, InvalidRequest
from tandem.facts.sampling import SamplingParameters
from tandem.text.call_markup import PYTHON_TAG, TAGS, shown_format, written_calls
from tandem.text.chat import ChatTemplate
from tandem.text.checkpoint import read_text_files
from tandem.text.detokenize import Detokenizer, TokenBytes, detokenizer
from tandem.text.files import TokenizerFiles
from tandem.text.fill_in_middle import FillInMiddle, fill_in_middle
from tandem.text.grammars import LlGuidanceGrammars
from tandem.text.reasoning import (
    END_THINK_TAG,
    THINK_TAG,
    ReasoningFormat,
    ReasoningStart,
    after_reasoning,
    reasoning_format,
    reasoning_start,
)
from tandem.text.shielding import ClientText, client_text
from tandem.text.tokenizer import Tokenizer
from tandem.text.tool_calls import ToolFormat
from tandem.text.tool_grammars import ToolCallSyntax

# Instead of a parser's name: the one that the template shows, or none.
AUTO, NONE = "auto", "none"
# A template ends a prompt with a role's tokens, and perhaps a tag and blank space.
_PROMPT_END_TOKENS = 32


@dataclass(frozen=True, slots=True)
class TextModel:
    """Tokenizer, chat template, recommended sampling, tool-call and reasoning format of one
    checkpoint.

    `chat` is None for a checkpoint without a template, `default_template` the text of the usual
    one, `templates` that of all; `tool_format` None where they do not show which calls the model
    writes, `reasoning` where not that it reasons. `client_text` keeps what clients of a chat write
    text; `grammars` are of answers that have to have a form; `middle` is None where the model
    cannot fill in what stands between two texts.
    """

    tokenizer: Tokenizer
    token_bytes: TokenBytes
    chat: ChatTemplate | None
    default_template: str | None
    templates: str
    defaults: SamplingParameters
    tool_format: ToolFormat | None
    reasoning: ReasoningFormat | None
    client_text: ClientText
    grammars: LlGuidanceGrammars
    middle: FillInMiddle | None

    @classmethod
    def load(
        cls, checkpoint: Path, *, tool_call_parser: str = AUTO, reasoning_parser: str = AUTO
    ) -> "TextModel":
        """Reads a checkpoint's folder, or a GGUF file. The parsers are a `ToolFormat` and a
        `ReasoningFormat` by name, `AUTO` as the template shows, or `NONE`. Raises
        `InvalidConfiguration` naming file and problem."""
        files = read_text_files(checkpoint)
        tokenizer, templates = Tokenizer.of_files(files), files.chat_templates
        chat = ChatTemplate(templates, tokenizer.special_tokens) if templates else None
        return cls(
            tokenizer=tokenizer,
            token_bytes=TokenBytes(tokenizer),
            chat=chat,
            default_template=templates.get("default"),
            templates="".join(templates.values()),
            defaults=_defaults(files),
            tool_format=_tool_format(tool_call_parser, "".join(templates.values())),
            reasoning=_reasoning(reasoning_parser, "".join(templates.values())),
            client_text=client_text(tokenizer, templates, chat.cuts if chat else ()),
            grammars=LlGuidanceGrammars(tokenizer),
            middle=fill_in_middle(tokenizer),
        )

    @property
    def tool_call_syntax(self) -> ToolCallSyntax | None:
        """How the model writes calls, if calls can be demanded of it."""
        if self.tool_format is None:
            return None
        written = written_calls(self.tool_format, self.templates)
        if written is None:
            return None
        tags = (*TAGS[self.tool_format], PYTHON_TAG)
        ids = {tag: self.tokenizer.token_id(tag) for tag in tags}
        return ToolCallSyntax(
            self.tool_format, written, {tag: i for tag, i in ids.items() if i is not None}
        )

    def detokenizer(
        self, *, skip_special_tokens: bool, kept_tags: Collection[str] = ()
    ) -> Detokenizer:
        """A fresh detokenizer, which has `kept_tags` even where they are special tokens."""
        skipped = self.tokenizer.special_token_ids if skip_special_tokens else frozenset()
        skipped = skipped - {self.tokenizer.token_id(tag) for tag in kept_tags}
        return detokenizer(self.tokenizer, self.token_bytes, frozenset(skipped))

    def spelled(self, token_ids: Sequence[int]) -> str:
        """Their text with special tokens, as the model reads and writes it."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def reasoning_start(self, prompt: Sequence[int], continued: str | None) -> ReasoningStart:
        """How the answer to this prompt of a chat begins; `continued` is the message of the
        assistant that it goes on with, if it does."""
        if self.reasoning is None:
            return ReasoningStart.NONE
        end = self.tokenizer.decode(prompt[-_PROMPT_END_TOKENS:], skip_special_tokens=False)
        return reasoning_start(self.reasoning, end, continued)

    def after_reasoning(self, grammar: str, start: ReasoningStart) -> str:
        """The grammar of an answer that begins so and is a text of `grammar` then. Raises
        `GrammarError`."""
        tags = (THINK_TAG, END_THINK_TAG)
        tokens = frozenset(tag for tag in tags if self.tokenizer.token_id(tag) is not None)
        return after_reasoning(grammar, start, tokens)


def _tool_format(parser: str, templates: str) -> ToolFormat | None:
    if parser == AUTO:
        return shown_format(templates)
    return None if parser == NONE else ToolFormat(parser)


def _reasoning(parser: str, templates: str) -> ReasoningFormat | None:
    if parser == AUTO:
        return reasoning_format(templates)
    return None if parser == NONE else ReasoningFormat(parser)


def _defaults(files: TokenizerFiles) -> SamplingParameters:
    declared = files.generation_config
    values: dict[str, Any] = {}
    for each in client_fields(SamplingParameters):
        value = declared.get(each.name)
        if each.recommended and isinstance(value, (int, float)):
            values[each.name] = value
    # Explicitly not sampling means greedy, as the authors' own library reads it.
    if declared.get("do_sample") is False:
        values.setdefault("temperature", 0.0)
    try:
        return SamplingParameters(**values)
    except InvalidRequest as error:
        raise InvalidConfiguration(f"{files.sampling_source}: {error}") from error
