"""Texts and pairs as an encoder's tokens, against what the tokenizers library makes of them."""

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from tandem.facts.encoder import EncodedText
from tandem.facts.errors import InvalidRequest
from tandem.text.encoder_input import encode_inputs
from tandem.text.tokenizer import Tokenizer

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefghij"]


def word_tokenizer() -> tokenizers.Tokenizer:
    """A token for each letter between blanks, with the special tokens and types of a BERT."""
    core = tokenizers.Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return core


@pytest.fixture
def tokenizer(tmp_path) -> Tokenizer:
    core = word_tokenizer()
    # As checkpoints may ask for; the limit is the caller's alone.
    core.enable_truncation(4)
    core.enable_padding()
    core.save(str(tmp_path / "tokenizer.json"))
    return Tokenizer.load(tmp_path)


def test_texts_and_pairs_in_their_order(tokenizer):
    found = encode_inputs(tokenizer, ["a b", ("c", "d e"), "", "j"], 512)
    assert found == [
        EncodedText((1, 4, 5, 2), (0, 0, 0, 0)),
        EncodedText((1, 6, 2, 7, 8, 2), (0, 0, 0, 1, 1, 1)),
        EncodedText((1, 2), (0, 0)),
        EncodedText((1, 13, 2), (0, 0, 0)),
    ]
    assert encode_inputs(tokenizer, [], 512) == []


@pytest.mark.parametrize("first", range(1, 8))
def test_pairs_are_cut_as_by_the_library(tokenizer, first):
    library = word_tokenizer()
    for second in range(1, 8):
        pair = ("a " * first, "b " * second)
        for limit_tokens in range(3, first + second + 5):
            library.enable_truncation(limit_tokens, strategy="longest_first")
            expected = library.encode(*pair)
            found = encode_inputs(tokenizer, [pair], limit_tokens, truncate=True)
            assert found == [EncodedText(tuple(expected.ids), tuple(expected.type_ids))]


def test_single_texts_lose_their_end(tokenizer):
    assert encode_inputs(tokenizer, ["a b c d"], 5, truncate=True)[0].token_ids == (1, 4, 5, 6, 2)
    assert encode_inputs(tokenizer, ["a b c"], 5, truncate=True)[0].token_ids == (1, 4, 5, 6, 2)


def test_what_is_too_long_is_named(tokenizer):
    with pytest.raises(InvalidRequest, match=r"input\[1\] has 6 tokens; .* at most 5 at once"):
        encode_inputs(tokenizer, ["a", "a b c d"], 5)
    with pytest.raises(InvalidRequest, match=r"documents\[0\] has 5 tokens"):
        encode_inputs(tokenizer, [("a", "b")], 4, field="documents")
    # Not even the special tokens fit.
    with pytest.raises(InvalidRequest, match="at most 2"):
        encode_inputs(tokenizer, [("a", "b")], 2, truncate=True)


def test_a_text_without_any_token(tmp_path):
    core = word_tokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A $B", special_tokens=[]
    )
    core.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    with pytest.raises(InvalidRequest, match=r"input\[0\] holds no text"):
        encode_inputs(tokenizer, [" "], 8)
    with pytest.raises(InvalidRequest, match=r"input\[0\] holds no text"):
        encode_inputs(tokenizer, ["a"], 0, truncate=True)
