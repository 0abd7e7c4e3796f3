"""Text model: tokenizer, chat template, sampling defaults and tool format of one checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.facts.client_fields import client_fields
from tandem.facts.errors import InvalidConfiguration, InvalidRequest
from tandem.facts.sampling import SamplingParameters
from tandem.text.chat import ChatTemplate
from tandem.text.detokenize import Detokenizer, TokenBytes, detokenizer
from tandem.text.files import read_chat_templates, read_json
from tandem.text.grammars import LlGuidanceGrammars
from tandem.text.shielding import ClientText, client_text
from tandem.text.tokenizer import Tokenizer
from tandem.text.tool_grammars import ToolCallSyntax
from tandem.text.tools import CLOSE_TAG, OPEN_TAG, ToolFormat


@dataclass(frozen=True, slots=True)
class TextModel:
    """Tokenizer, chat template, recommended sampling and tool-call format of one checkpoint.

    `chat` is None for a checkpoint without a template; `tool_format` None where the template does
    not show which calls the model writes. `client_text` keeps what clients of a chat write text;
    `grammars` are of answers that have to have a form.
    """

    tokenizer: Tokenizer
    token_bytes: TokenBytes
    chat: ChatTemplate | None
    defaults: SamplingParameters
    tool_format: ToolFormat | None
    client_text: ClientText
    grammars: LlGuidanceGrammars

    @classmethod
    def load(cls, directory: Path) -> "TextModel":
        """Reads a checkpoint directory. Raises `InvalidConfiguration` naming file and problem."""
        tokenizer = Tokenizer.load(directory)
        templates = read_chat_templates(directory)
        chat = ChatTemplate(templates, tokenizer.special_tokens) if templates else None
        return cls(
            tokenizer=tokenizer,
            token_bytes=TokenBytes(tokenizer),
            chat=chat,
            defaults=_defaults(directory / "generation_config.json"),
            tool_format=_tool_format("".join(templates.values())),
            client_text=client_text(tokenizer, templates, chat.cuts if chat else ()),
            grammars=LlGuidanceGrammars(tokenizer),
        )

    @property
    def tool_call_syntax(self) -> ToolCallSyntax | None:
        """How the model writes calls, if it is known to."""
        if self.tool_format is None:
            return None
        return ToolCallSyntax(self.tool_format, self.tokenizer.token_id(OPEN_TAG) is not None)

    def detokenizer(self, *, skip_special_tokens: bool, for_tools: bool = False) -> Detokenizer:
        """A fresh detokenizer; `for_tools` keeps call tags even where they are special tokens."""
        skipped = self.tokenizer.special_token_ids if skip_special_tokens else frozenset()
        if for_tools:
            tags = {self.tokenizer.token_id(tag) for tag in (OPEN_TAG, CLOSE_TAG)}
            skipped = frozenset(skipped - tags)
        return detokenizer(self.tokenizer, self.token_bytes, skipped)


def _tool_format(templates: str) -> ToolFormat | None:
    if OPEN_TAG in templates:
        return ToolFormat.HERMES
    if '"parameters"' in templates and '"name"' in templates:
        return ToolFormat.LLAMA3_JSON
    return None


def _defaults(path: Path) -> SamplingParameters:
    declared = read_json(path)
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
        raise InvalidConfiguration(f"{path}: {error}") from error
