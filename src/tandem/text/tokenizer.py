"""Tokenizer: text to token ids and back.

Owns the tokenizer of a checkpoint and what the checkpoint says of its special tokens.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from tandem.facts.errors import PromptTooLong
from tandem.text.checkpoint import read_text_files
from tandem.text.files import TokenizerFiles

SPECIAL_TOKEN_KEYS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# A text that needs more bytes a token than this to fit is counted piece by piece first. A cut costs
# tokens, but never as many as the piece has: twice the limit is certainly too long.
_USUAL_BYTES = 3
_PIECE_CHARS = 32 << 10
_CUTS_COST = 2
_MANY_TOKENS = 1024
# Normalizers that make no text shorter, so that a bound in bytes stays one.
_LENGTHENING = frozenset({"Prepend", "ByteLevel"})
# Normalizers of a text's ends alone.
_OF_ENDS = frozenset({"Prepend", "Strip"})
# Normalizers that make the same of a text's parts as of the whole.
_LOCAL = frozenset(
    {
        "BertNormalizer",
        "ByteLevel",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Nmt",
        "Precompiled",
        "Replace",
        "StripAccents",
    }
)


class Tokenizer:
    """Text to token ids and back.

    `special_tokens` maps names such as `bos_token` to their text, as chat templates want them;
    `class_name` is that of the library which the checkpoint comes from, where it says one.
    `end_token_ids` are all ids that end an answer; `special_token_ids` those that are no text.
    No token stands for more than `longest_token_bytes` of a text; 0 where that is not known.
    """

    def __init__(self, core: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
        # A checkpoint may ask for truncation or padding, which would silently change prompts.
        core.no_truncation()
        core.no_padding()
        self.core = core
        self.special_tokens = _special_tokens(files.tokenizer_config)
        named = files.tokenizer_config.get("tokenizer_class")
        self.class_name = named if isinstance(named, str) else None
        added = core.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        self.longest_token_bytes = _longest_token_bytes(core)
        self.vocabulary_tokens: int = core.get_vocab_size(with_added_tokens=True)
        self.end_token_ids = self._end_token_ids(files)
        self._letters = _letters_of(core.normalizer)
        self._bos_id = self.token_id(self.special_tokens.get("bos_token"))
        added_ids: list[int] = core.encode("", add_special_tokens=True).ids
        add_bos = files.tokenizer_config.get("add_bos_token")
        # The flag of the configuration wins over the post-processor of tokenizer.json.
        self._prepends_bos = add_bos is True and self._bos_id not in added_ids
        self._drops_bos = add_bos is False and added_ids[:1] == [self._bos_id]

    @classmethod
    def load(cls, checkpoint: Path) -> "Tokenizer":
        """Of a checkpoint's folder, or a GGUF file. Raises `InvalidConfiguration` when files are
        missing or unreadable."""
        return cls.of_files(read_text_files(checkpoint))

    @classmethod
    def of_files(cls, files: TokenizerFiles) -> "Tokenizer":
        return cls(tokenizers.Tokenizer.from_str(files.tokenizer_json), files)

    def differs_from(self, other: "Tokenizer") -> str:
        """What makes a token id mean something else to the other one; empty if nothing does."""
        if self.core.to_str() != other.core.to_str():
            return "tokenizer"
        same_ends = set(self.end_token_ids) == set(other.end_token_ids)
        return "" if same_ends else "end-of-sequence token"

    def encode_within(
        self, text: str, limit_tokens: int, *, add_special_tokens: bool
    ) -> tuple[int, ...]:
        """As `encode`, at a cost that the limit bounds, not the text. Raises `PromptTooLong` for
        what certainly has more than `limit_tokens`; a little more may pass."""
        # A character has one to four bytes: only a text that may be too long is counted in bytes.
        text_bytes = len(text)
        if text_bytes * 4 > limit_tokens * _USUAL_BYTES:
            text_bytes = len(text.encode(errors="replace"))
        longest = self.longest_token_bytes
        if longest and text_bytes > limit_tokens * longest:
            raise PromptTooLong(text_bytes // longest, limit_tokens, exact=False)
        if len(text) > _PIECE_CHARS and text_bytes > limit_tokens * _USUAL_BYTES:
            self._check_pieces(text, limit_tokens)
        return self.encode(text, add_special_tokens=add_special_tokens)

    def _check_pieces(self, text: str, limit_tokens: int) -> None:
        counted_tokens = 0
        for start in range(0, len(text), _PIECE_CHARS):
            piece = text[start : start + _PIECE_CHARS]
            counted = self.core.encode_batch_fast([piece], add_special_tokens=False)
            counted_tokens += len(counted[0])
            if counted_tokens > _CUTS_COST * limit_tokens:
                raise PromptTooLong(counted_tokens // _CUTS_COST, limit_tokens, exact=False)

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
        ids = list(token_ids)
        if len(ids) > _MANY_TOKENS:
            # As with `encode`: only the call for batches lets other threads run.
            texts: list[str] = self.core.decode_batch(
                [ids], skip_special_tokens=skip_special_tokens
            )
            return texts[0]
        text: str = self.core.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def added_tokens(self) -> list[str]:
        """The texts of all added tokens, special or not."""
        return [token.content for token in self.core.get_added_tokens_decoder().values()]

    def find_as_written(self, texts: Collection[str]) -> list[str]:
        """From now on the added tokens with these texts are found in a text before its normalizer
        could make it one of them (of full-width letters, of capitals). Returns the spellings of
        those that are still found behind a normalizer: changing them would change other ids."""
        normalizer, still = self.core.normalizer, []
        if normalizer is None:
            return []
        is_local = all(part["type"] in _LOCAL for part in _normalizer_parts(normalizer))
        for token in self.core.get_added_tokens_decoder().values():
            if not token.normalized or token.content not in texts:
                continue
            if not is_local or token.lstrip or token.rstrip or token.single_word:
                still.append(normalizer.normalize_str(token.content))
                continue
            found = tokenizers.AddedToken(token.content, normalized=False, special=token.special)
            add = self.core.add_special_tokens if token.special else self.core.add_tokens
            add([found])
        return still

    def normalized(self, text: str) -> str:
        """`text` with the letters that the normalizer gives it wherever it stands in a prompt."""
        if self._letters is None:
            return text
        letters: str = self._letters.normalize_str(text)
        return letters

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


def _longest_token_bytes(core: tokenizers.Tokenizer) -> int:
    """Bytes of text that one token stands for at most, 0 where nothing bounds them: one unknown
    token may stand for any text, and some normalizers and added tokens swallow blank space."""
    model = core.model
    spells_all = getattr(model, "byte_fallback", False) or not getattr(model, "unk_token", None)
    added = core.get_added_tokens_decoder().values()
    swallows = any(token.lstrip or token.rstrip for token in added)
    if not spells_all or swallows or not _lengthens(core.normalizer):
        return 0
    names = core.get_vocab(with_added_tokens=True)
    return max((len(name.encode(errors="replace")) for name in names), default=0)


def _lengthens(normalizer: Any) -> bool:
    if normalizer is None:
        return True
    parts = _normalizer_parts(normalizer)
    return all(part["type"] in _LENGTHENING or _lengthening_replace(part) for part in parts)


def _normalizer_parts(normalizer: Any) -> list[dict[str, Any]]:
    state: dict[str, Any] = json.loads(normalizer.__getstate__())
    return state["normalizers"] if state["type"] == "Sequence" else [state]


def _letters_of(normalizer: Any) -> Any:
    """A normalizer without what the other does to the ends of a text; None where that is all."""
    parts = [] if normalizer is None else _normalizer_parts(normalizer)
    parts = [part for part in parts if part["type"] not in _OF_ENDS]
    if not parts:
        return None
    letters = tokenizers.normalizers.Sequence([])
    letters.__setstate__(json.dumps({"type": "Sequence", "normalizers": parts}).encode())
    return letters


def _lengthening_replace(part: Mapping[str, Any]) -> bool:
    replaced = part.get("pattern", {}).get("String") if part["type"] == "Replace" else None
    return replaced is not None and len(part["content"].encode()) >= len(replaced.encode())


def _special_tokens(tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    found = {}
    for key in SPECIAL_TOKEN_KEYS:
        token = tokenizer_config.get(key)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            found[key] = token
    return found
