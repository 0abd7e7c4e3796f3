"""Which bytes does one token stand for? Reads it off the decoder that the tokenizer declares."""

import json
import re

from tandem.text.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes are themselves, the others characters from 256."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


class Spelling:
    """Bytes of each token id, found once and kept.

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
            known = self._bytes[token_id] = self._spell(self._tokenizer.token_name(token_id))
        return known

    def _spell(self, name: str) -> bytes:
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
