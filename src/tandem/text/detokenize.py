"""Which text may be shown now, while tokens still arrive?

A token can end inside a character, so text waits until its bytes are whole. The deltas of one
sequence, joined, are the decoding of all its tokens.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from tandem.text.spelling import Spelling
from tandem.text.tokenizer import Tokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(Protocol):
    """Text of one sequence, piece by piece."""

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens make certain; often empty, never a broken character."""
        ...

    def finish(self) -> str:
        """What was held back; an incomplete character comes out as U+FFFD."""
        ...


class ByteDetokenizer:
    """For byte-level vocabularies: each token is bytes, and the text is those bytes as UTF-8."""

    def __init__(self, spelling: Spelling, skipped: frozenset[int]) -> None:
        assert spelling.is_byte_level
        self._bytes_of = spelling.bytes_of
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_ids: Sequence[int]) -> str:
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

    def add(self, token_ids: Sequence[int]) -> str:
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


def detokenizer(tokenizer: Tokenizer, spelling: Spelling, skipped: frozenset[int]) -> Detokenizer:
    """A fresh detokenizer for one sequence that leaves out the `skipped` ids."""
    if spelling.is_byte_level:
        return ByteDetokenizer(spelling, skipped)
    return WindowDetokenizer(tokenizer, skipped)
