"""Streaming detokeniser: the bytes of single tokens (`TokenBytes`), and the text that may be shown
while tokens still arrive.

A token can end inside a character, so text waits until its bytes are whole. The deltas of one
sequence, joined, are the decoding of all its tokens.
"""

import codecs
import json
import re
from collections.abc import Sequence
from typing import Protocol

from tandem.text.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"
_BROKEN = "\N{REPLACEMENT CHARACTER}"


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes are themselves, the others characters from 256."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


class TokenBytes:
    """The bytes that each token stands for, read off the decoder that the tokenizer declares; found
    once and kept.

    `is_byte_level` says that joining these bytes and reading them as UTF-8 is exactly what the
    tokenizer's own decoder does. For other decoders they are what a client may be shown of a token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes: dict[int, bytes] = {}
        self.is_byte_level = _decoder_types(tokenizer) == ["ByteLevel"]

    def bytes_of(self, token_id: int) -> bytes:
        """Bytes of one token; empty for an id outside the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._bytes_of_name(
                self._tokenizer.token_name(token_id)
            )
        return known

    def _bytes_of_name(self, name: str) -> bytes:
        if self.is_byte_level:
            letters = [_ALPHABET.get(letter) for letter in name]
            if all(letter is not None for letter in letters):
                return bytes(letter for letter in letters if letter is not None)
            return name.encode()
        byte_token = _BYTE_TOKEN.fullmatch(name)
        if byte_token:
            return bytes([int(byte_token[1], 16)])
        return name.replace(_WORD_START, " ").encode()


def _decoder_types(tokenizer: Tokenizer) -> list[str]:
    decoder = tokenizer.core.decoder
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    parts = state["decoders"] if state["type"] == "Sequence" else [state]
    return [part["type"] for part in parts]


class Detokenizer(Protocol):
    """Text of one sequence, piece by piece."""

    def add_tokens(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens make certain; often empty, never a broken character."""
        ...

    def finish(self) -> str:
        """What was held back; an incomplete character comes out as U+FFFD."""
        ...


class ByteDetokenizer:
    """For byte-level vocabularies: each token is bytes, and the text is those bytes as UTF-8."""

    def __init__(self, token_bytes: TokenBytes, skipped: frozenset[int]) -> None:
        assert token_bytes.is_byte_level
        self._bytes_of = token_bytes.bytes_of
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add_tokens(self, token_ids: Sequence[int]) -> str:
        skipped = self._skipped
        data = b"".join([self._bytes_of(token) for token in token_ids if token not in skipped])
        return self._utf8.decode(data)

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For any decoder: decodes the new tokens behind the last ones that were shown.

    Decoders look left at most to the token before (a leading space is stripped, a sub-word is
    joined), so shown tokens in front make the difference of two decodings the new text. One thing
    is better than decoding all at once: a byte-fallback run that ends in a broken character keeps
    the whole characters it began with.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._shown: list[int] = []
        self._shown_text = ""
        self._pending: list[int] = []

    def add_tokens(self, token_ids: Sequence[int]) -> str:
        # Skipped tokens never enter the window: alone in it they would hide a leading space.
        self._pending += [token for token in token_ids if token not in self._skipped]
        text = self._pending_text()
        if not text or text.endswith(_BROKEN):
            return ""
        return self._show(text)

    def finish(self) -> str:
        return self._show(self._pending_text())

    def _pending_text(self) -> str:
        if not self._pending:
            return ""
        whole = self._decode(self._shown + self._pending)
        if whole.startswith(self._shown_text):
            return whole[len(self._shown_text) :]
        return self._decode(self._pending)

    def _show(self, text: str) -> str:
        if text:
            self._shown, self._pending = self._pending, []
            self._shown_text = self._decode(self._shown)
        return text

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def detokenizer(
    tokenizer: Tokenizer, token_bytes: TokenBytes, skipped: frozenset[int]
) -> Detokenizer:
    """A fresh detokenizer for one sequence that leaves out the `skipped` ids."""
    if token_bytes.is_byte_level:
        return ByteDetokenizer(token_bytes, skipped)
    return WindowDetokenizer(tokenizer, skipped)
