"""Laws: the deltas of a sequence are its decoding, however its tokens arrive, and never broken."""

import itertools

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tandem.text.detokenize import ByteDetokenizer, TokenBytes, WindowDetokenizer, detokenizer
from tandem.text.files import TokenizerFiles
from tandem.text.tokenizer import Tokenizer
from tests.text.tiny_checkpoint import VOCABULARY, byte_level_tokenizer

BROKEN = "\N{REPLACEMENT CHARACTER}"
TEXTS = st.text(st.sampled_from("ab z.,\n日本語中文é🎉👩🏽‍🚀\u200d "), max_size=40) | st.text(
    max_size=40
)
NOTHING_SKIPPED: frozenset[int] = frozenset()


def wrap(core: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(core, TokenizerFiles("", {}, {}, {}))


def sentence_piece() -> Tokenizer:
    """Llama 2's pipeline: words start with U+2581, unknown characters fall back to bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "a", "b", "z", ".", ",", "ab", "\u2581a", "\u2581ab", "日", "本"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    merges = [("a", "b"), ("\u2581", "a"), ("\u2581", "ab")]
    core = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.add_special_tokens(["<s>", "</s>"])
    return wrap(core)


def word_piece() -> Tokenizer:
    vocabulary = {w: i for i, w in enumerate(["[UNK]", "a", "##b", "##z", "b", ".", ","])}
    core = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return wrap(core)


def metaspace() -> Tokenizer:
    vocabulary = {w: i for i, w in enumerate(["<unk>", "\u2581", "a", "\u2581a", "b", "\u2581b"])}
    core = tokenizers.Tokenizer(models.BPE(vocabulary, [("\u2581", "a")], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    core.decoder = decoders.Metaspace(prepend_scheme="always")
    return wrap(core)


BYTE_LEVEL = wrap(byte_level_tokenizer())
TOKEN_BYTES = TokenBytes(BYTE_LEVEL)
SENTENCE_PIECE, WORD_PIECE, METASPACE = sentence_piece(), word_piece(), metaspace()


def stream(detok, tokens, cuts) -> list[str]:
    places = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    deltas = [detok.add_tokens(tokens[a:b]) for a, b in itertools.pairwise(places)]
    return [*deltas, detok.finish()]


CUTS = st.lists(st.integers(0, 1000), max_size=60)


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.integers(0, VOCABULARY + 5), max_size=30), cuts=CUTS)
def test_byte_level_deltas_are_the_decoding_even_of_garbage(tokens, cuts):
    skipped = BYTE_LEVEL.special_token_ids
    for hidden, skips in ((skipped, True), (NOTHING_SKIPPED, False)):
        deltas = stream(ByteDetokenizer(TOKEN_BYTES, hidden), tuple(tokens), cuts)
        assert "".join(deltas) == BYTE_LEVEL.decode(tokens, skip_special_tokens=skips)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, cuts=CUTS)
def test_byte_level_text_comes_back_unbroken(text, cuts):
    tokens = BYTE_LEVEL.encode(text, add_special_tokens=False)
    deltas = stream(ByteDetokenizer(TOKEN_BYTES, NOTHING_SKIPPED), tokens, cuts)
    assert "".join(deltas) == text
    if BROKEN not in text:
        assert not any(BROKEN in delta for delta in deltas)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, cuts=CUTS)
def test_the_window_agrees_with_the_bytes(text, cuts):
    tokens = BYTE_LEVEL.encode(text, add_special_tokens=False)
    window = stream(WindowDetokenizer(BYTE_LEVEL, NOTHING_SKIPPED), tokens, cuts)
    assert "".join(window) == text


@pytest.mark.parametrize("tokenizer", [SENTENCE_PIECE, WORD_PIECE, METASPACE])
@settings(max_examples=150, deadline=None)
@given(text=TEXTS, cuts=CUTS)
def test_any_decoder_streams_its_whole_decoding(tokenizer, text, cuts):
    tokens = tokenizer.encode(text, add_special_tokens=False)
    detok = detokenizer(tokenizer, TokenBytes(tokenizer), tokenizer.special_token_ids)
    assert isinstance(detok, WindowDetokenizer)
    assert "".join(stream(detok, tokens, cuts)) == tokenizer.decode(tokens)


@settings(max_examples=150, deadline=None)
@given(
    words=st.lists(st.sampled_from([1, 2, 259, 260, 265, 266, 267, 269]), max_size=12), cuts=CUTS
)
def test_skipped_tokens_leave_the_spaces_around_them(words, cuts):
    detok = WindowDetokenizer(SENTENCE_PIECE, SENTENCE_PIECE.special_token_ids)
    assert "".join(stream(detok, tuple(words), cuts)) == SENTENCE_PIECE.decode(words)


def test_a_character_waits_for_its_last_byte():
    tokens = BYTE_LEVEL.encode("\U0001f9e0", add_special_tokens=False)
    assert len(tokens) > 1
    detok = ByteDetokenizer(TOKEN_BYTES, NOTHING_SKIPPED)
    deltas = [detok.add_tokens([token]) for token in tokens]
    assert deltas == [""] * (len(tokens) - 1) + ["\U0001f9e0"]


def test_an_unfinished_character_ends_as_a_replacement():
    tokens = BYTE_LEVEL.encode("a\U0001f9e0", add_special_tokens=False)
    for detok in (
        ByteDetokenizer(TOKEN_BYTES, NOTHING_SKIPPED),
        WindowDetokenizer(BYTE_LEVEL, NOTHING_SKIPPED),
    ):
        assert detok.add_tokens(tokens[:-1]) in ("a", "")
        assert detok.finish().endswith(BROKEN)


def test_byte_tokens_spell_their_byte():
    token_bytes = TokenBytes(SENTENCE_PIECE)
    token = SENTENCE_PIECE.token_id("<0xE4>")
    assert token is not None
    assert token_bytes.bytes_of(token) == b"\xe4"
    assert token_bytes.bytes_of(265) == b"ab"
    assert token_bytes.bytes_of(266) == b" a"
    assert token_bytes.bytes_of(10**6) == b""
