"""Which token ids does a text have, and which text do token ids have?

Owns the tokenizer of a checkpoint directory and what the checkpoint says of its special tokens.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers

from tandem.text.files import TokenizerFiles, read_tokenizer_files

_SPECIAL_TOKEN_KEYS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class Tokenizer:
    """Text to token ids and back.

    `special_tokens` maps names such as `bos_token` to their text, as chat templates want them.
    `end_token_ids` are all ids that end an answer; `special_token_ids` those that are no text.
    """

    def __init__(self, core: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
        # A checkpoint may ask for truncation or padding, which would silently change prompts.
        core.no_truncation()
        core.no_padding()
        self.core = core
        self.special_tokens = _special_tokens(files.tokenizer_config)
        self.special_token_ids = frozenset(
            token_id for token_id, token in core.get_added_tokens_decoder().items() if token.special
        )
        self.vocabulary_tokens: int = core.get_vocab_size(with_added_tokens=True)
        self.end_token_ids = self._end_token_ids(files)
        self._bos_id = self.token_id(self.special_tokens.get("bos_token"))
        added_ids: list[int] = core.encode("", add_special_tokens=True).ids
        add_bos = files.tokenizer_config.get("add_bos_token")
        # The flag of the configuration wins over the post-processor of tokenizer.json.
        self._prepends_bos = add_bos is True and self._bos_id not in added_ids
        self._drops_bos = add_bos is False and added_ids[:1] == [self._bos_id]

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Raises `InvalidConfiguration` when files are missing or unreadable."""
        files = read_tokenizer_files(directory)
        return cls(tokenizers.Tokenizer.from_str(files.tokenizer_json), files)

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Token ids of `text`, with the checkpoint's leading and trailing specials if asked."""
        # Of the library's calls only those for batches let other threads run meanwhile.
        batch = self.core.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        if add_special_tokens and self._prepends_bos and self._bos_id is not None:
            return (self._bos_id, *ids)
        if add_special_tokens and self._drops_bos:
            return tuple(ids[1:])
        return tuple(ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids` as a whole; ids that the vocabulary lacks have none."""
        text: str = self.core.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_id(self, token: str | None) -> int | None:
        """Id of one token by its exact text, or None."""
        if token is None:
            return None
        found: int | None = self.core.token_to_id(token)
        return found

    def token_name(self, token_id: int) -> str:
        """How the vocabulary spells the token; empty for an id outside it."""
        name: str | None = self.core.id_to_token(token_id)
        return name or ""

    def _end_token_ids(self, files: TokenizerFiles) -> tuple[int, ...]:
        declared = files.generation_config.get("eos_token_id", files.config.get("eos_token_id"))
        ids = declared if isinstance(declared, list) else [declared]
        named = self.token_id(self.special_tokens.get("eos_token"))
        return tuple(dict.fromkeys(i for i in [*ids, named] if isinstance(i, int)))


def _special_tokens(tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    found = {}
    for key in _SPECIAL_TOKEN_KEYS:
        token = tokenizer_config.get(key)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            found[key] = token
    return found
