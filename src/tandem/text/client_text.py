"""Special tokens that a client's text must never become, and in which of its strings.

Special tokens nowhere. Further tokens of the template (roles, tags of tools and of thinking) not
either, except that an earlier answer that comes back may hold the tags that models write in them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.text.shielding import Shield
from tandem.text.tokenizer import Tokenizer
from tandem.text.tools import CLOSE_TAG, OPEN_TAG

_ANSWER_TAGS = frozenset({OPEN_TAG, CLOSE_TAG, "<think>", "</think>"})
# Templates write a role's token in one piece or around the role's name.
_ROLES = ("system", "developer", "user", "assistant", "tool")


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
