"""The tokens of a GGUF file: their texts by id, what each is for, and what the file calls them."""

from dataclasses import dataclass

from tandem.facts.errors import InvalidConfiguration
from tandem.gguf.file import GgufFile

TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
# The types of tokens that are more than pieces of text.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`texts` by id. Added tokens are found in a text before it is cut into words: those of
    `special` are no text, those of `written` are."""

    file: GgufFile
    texts: list[str]
    special: frozenset[int]
    written: frozenset[int]

    def named(self, name: str) -> str | None:
        """The text of the token that the file names so (`bos`, `eos`)."""
        token_id = self.named_id(name)
        return None if token_id is None else self.texts[token_id]

    def named_id(self, name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        if not self.file.has(key):
            return None
        token_id = self.file.whole(key)
        # Some files say with the largest number that there is none.
        return token_id if token_id < len(self.texts) else None

    def added_tokens(self) -> list[dict[str, object]]:
        """As tokenizer.json lists them."""
        return [
            {
                "id": token_id,
                "content": self.texts[token_id],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": token_id in self.special,
            }
            for token_id in sorted(self.special | self.written)
        ]


def read_vocabulary(file: GgufFile) -> Vocabulary:
    """Raises `InvalidConfiguration`."""
    texts, types = file.texts(TOKENS), file.numbers(TYPES)
    if not texts:
        raise InvalidConfiguration(f"{file.path}: {TOKENS} is missing; the file has no tokenizer")
    if types and len(types) != len(texts):
        raise InvalidConfiguration(
            f"{file.path}: {TYPES} has {len(types):,} entries for {len(texts):,} tokens"
        )
    by_text = {text: token_id for token_id, text in enumerate(texts)}
    if len(by_text) != len(texts) or "" in by_text:
        raise InvalidConfiguration(
            f"{file.path}: {TOKENS} holds an empty token or the same one twice; expected "
            "different texts"
        )
    special = {token_id for token_id, kind in enumerate(types) if kind in (UNKNOWN, CONTROL)}
    written = {token_id for token_id, kind in enumerate(types) if kind == USER_DEFINED}
    return Vocabulary(file, texts, frozenset(special), frozenset(written))
