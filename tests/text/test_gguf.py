"""Tokenizers of GGUF files: pairs of bytes against the tokenizer.json that they were made of,
scored pieces against the algorithm written out."""

import random
import shutil

import pytest

from tandem.config.environment import BUNDLED_MODEL
from tandem.facts.errors import InvalidConfiguration
from tandem.text.chat import ChatOptions
from tandem.text.gguf.pre_tokenizers import PRE_TOKENIZERS
from tandem.text.model import TextModel
from tandem.text.tokenizer import Tokenizer
from tests.text.gguf_files import write, write_byte_pairs

TEXTS = 1000
WORDS = (
    *("the", "Quick", "fox's", "I'LL", "naïve", "日本語", "привет", "🎉", "e\u0301", "\u3000"),
    *(" ", "  ", "\n", "\r\n\n", "\t", "12345", "3.14", "//", "!?", "don't", "\x00", "ﬁ", "\u2028"),
)
MARKS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|endoftext|>", "<|im")


def drawn_texts(seed, words):
    drawn = random.Random(seed)
    for _ in range(TEXTS):
        parts = drawn.choices(words, k=drawn.randrange(12))
        letters = (
            chr(drawn.choice((drawn.randrange(32, 127), drawn.randrange(0x3FF)))) for _ in "abc"
        )
        yield "".join(part + drawn.choice(("", " ", *letters)) for part in parts)


def test_byte_pairs_are_those_of_the_original(tmp_path):
    original = Tokenizer.load(BUNDLED_MODEL)
    found = Tokenizer.load(write_byte_pairs(tmp_path / "tokens.gguf"))
    assert found.vocabulary_tokens == original.vocabulary_tokens
    assert found.special_token_ids == original.special_token_ids
    assert set(found.end_token_ids) == set(original.end_token_ids)
    for text in drawn_texts(1, WORDS + MARKS):
        ids = original.encode(text, add_special_tokens=True)
        assert found.encode(text, add_special_tokens=True) == ids
        for skips in (True, False):
            expected = original.decode(ids, skip_special_tokens=skips)
            assert found.decode(ids, skip_special_tokens=skips) == expected


def test_chats_are_rendered_as_by_the_original(tmp_path):
    original = TextModel.load(BUNDLED_MODEL)
    found = TextModel.load(write_byte_pairs(tmp_path / "tokens.gguf"))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <b>"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for each in ([], tools):
        expected = original.chat.render(messages, each, ChatOptions())
        assert found.chat.render(messages, each, ChatOptions()) == expected
    assert found.tool_format == original.tool_format


def test_templates_by_name_and_recommended_sampling(tmp_path):
    path = write_byte_pairs(
        tmp_path / "tokens.gguf",
        chat_template=[
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "with {{ tools | length }} tools"},
        ],
        sampling_temp=0.25,
        sampling_top_k=7,
    )
    text = TextModel.load(path)
    assert text.chat.render([], [{}], ChatOptions()) == "with 1 tools"
    assert text.chat.render([], [], ChatOptions()) == "plain"
    assert (text.defaults.temperature, text.defaults.top_k) == (0.25, 7)


def test_sampling_that_cannot_be_names_the_file(tmp_path):
    path = write_byte_pairs(tmp_path / "tokens.gguf", sampling_temp=-1.0)
    with pytest.raises(InvalidConfiguration, match=r"tokens\.gguf: "):
        TextModel.load(path)


@pytest.mark.parametrize(("adds", "ids"), [(True, (0, 45)), (False, (45,)), (None, (0, 45))])
def test_a_first_token_as_the_file_says_or_else_its_pre_tokenizer(adds, ids, tmp_path):
    path = write_byte_pairs(
        tmp_path / "tokens.gguf", tokenizer_pre="llama-bpe", bos_token_id=0, add_bos_token=adds
    )
    tokenizer = Tokenizer.load(path)
    letter = tokenizer.token_name(45)
    assert tokenizer.encode(letter, add_special_tokens=True) == ids
    assert tokenizer.encode(letter, add_special_tokens=False) == (45,)


def test_a_last_token_where_the_file_says_so(tmp_path):
    tokenizer = Tokenizer.load(write_byte_pairs(tmp_path / "tokens.gguf", add_eos_token=True))
    assert tokenizer.encode("a", add_special_tokens=True)[-1] == 2
    assert 2 not in tokenizer.encode("a", add_special_tokens=False)


# The words of "it's 12345 ABCdef", as each pattern cuts them.
CUTS = {
    "gpt-2": ["it", "'s", " 12345", " ABCdef"],
    "smollm": ["it", "'s", " ", "1", "2", "3", "4", "5", " ABCdef"],
    "qwen2": ["it", "'s", " ", "1", "2", "3", "4", "5", " ABCdef"],
    "llama-bpe": ["it", "'s", " ", "123", "45", " ABCdef"],
    "tekken": ["it", "'s", " ", "1", "2", "3", "4", "5", " ABCdef"],
    "deepseek-coder": ["it", "'", "s", " ", "1", "2", "3", "4", "5", " ABCdef"],
}


@pytest.mark.parametrize(("name", "words"), CUTS.items(), ids=CUTS)
def test_words_are_cut_as_the_pre_tokenizer_says(name, words, tmp_path):
    path = write_byte_pairs(tmp_path / "tokens.gguf", tokenizer_pre=name)
    cut = Tokenizer.load(path).core.pre_tokenizer.pre_tokenize_str("it's 12345 ABCdef")
    assert [word.replace("Ġ", " ") for word, _ in cut] == words


def test_case_parts_words_of_tekken(tmp_path):
    path = write_byte_pairs(tmp_path / "tokens.gguf", tokenizer_pre="tekken")
    cut = Tokenizer.load(path).core.pre_tokenizer.pre_tokenize_str("helloWorld")
    assert [word for word, _ in cut] == ["hello", "World"]


def test_all_pre_tokenizers_can_be_built(tmp_path):
    for name in PRE_TOKENIZERS:
        path = write_byte_pairs(tmp_path / f"{name}.gguf", tokenizer_pre=name)
        tokenizer = Tokenizer.load(path)
        assert tokenizer.decode(tokenizer.encode("aé 1\n", add_special_tokens=False)) == "aé 1\n"


PIECES = [
    "▁",
    *"abcdeh'",
    "é",
    "ab",
    "▁a",
    "▁ab",
    "bc",
    "abc",
    "cd",
    "bcd",
    "▁abc",
    "▁▁",
    "de",
    "he",
]
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
MARKED = ["<|im_end|>", "▁▁▁"]


def scored(path, **changes):
    pieces = [*SPECIAL, *BYTES, *PIECES, *MARKED]
    merged = [piece for piece in PIECES if len(piece) > 1]
    drawn = random.Random(4)
    scores = {piece: -float(drawn.randrange(10**6)) for piece in merged}
    types = [2, 3, 3, *[6] * 256, *[1] * len(PIECES), 3, 4]
    said = {
        "tokenizer_model": "llama",
        "token_list": pieces,
        "token_scores": [scores.get(piece, -1e9) for piece in pieces],
        "token_types": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unk_token_id": 0,
        **changes,
    }
    return write(path, said), pieces, scores


def spelt_out(text, pieces, scores):
    """Of all neighbours that make a piece those with the highest score are merged, the leftmost
    first, as long as there are any."""
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (-scores[symbols[at] + symbols[at + 1]], at)
            for at in range(len(symbols) - 1)
            if symbols[at] + symbols[at + 1] in scores
        ]
        if not pairs:
            break
        _, at = min(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids = []
    for symbol in symbols:
        known = [pieces.index(symbol)] if symbol in pieces else []
        ids += known or [pieces.index(f"<0x{byte:02X}>") for byte in symbol.encode()]
    return tuple(ids)


def test_scored_pieces_are_merged_by_their_scores(tmp_path):
    path, pieces, scores = scored(tmp_path / "pieces.gguf")
    tokenizer = Tokenizer.load(path)
    words = ("a", "ab", "abc", "abcd", "bcde", "he", " ", "  a", "é", "日", "\n", "cdcd", "'")
    for text in drawn_texts(2, words):
        if not text or "   " in text:
            continue
        ids = spelt_out(text, pieces, scores)
        assert tokenizer.encode(text, add_special_tokens=True) == (1, *ids)
        assert tokenizer.decode(ids) == text


def test_added_tokens_of_scored_pieces(tmp_path):
    path, pieces, _ = scored(tmp_path / "pieces.gguf")
    tokenizer = Tokenizer.load(path)
    end, spaces = pieces.index("<|im_end|>"), pieces.index("▁▁▁")
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False) == (end,)
    assert spaces in tokenizer.encode("a   b", add_special_tokens=False)
    assert tokenizer.decode([pieces.index("a"), spaces]) == "a   "
    assert tokenizer.end_token_ids == (2, end)
    assert tokenizer.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }


def test_no_space_is_put_before_a_text_where_the_file_says_so(tmp_path):
    path, pieces, _ = scored(tmp_path / "pieces.gguf", add_space_prefix=False)
    tokenizer = Tokenizer.load(path)
    assert tokenizer.encode("d", add_special_tokens=False) == (pieces.index("d"),)
    assert tokenizer.decode([pieces.index("▁a")]) == " a"


BROKEN = {
    "no tokens": ({"token_list": None}, "tokenizer.ggml.tokens is missing"),
    "a kind that is not known": ({"tokenizer_model": "t5"}, "tokenizer.ggml.model is 't5'"),
    "no name of how words are cut": ({"tokenizer_pre": None}, "tokenizer.ggml.pre is 'missing'"),
    "one that is not known": ({"tokenizer_pre": "viking"}, "tokenizer.ggml.pre is 'viking'"),
    "merges of other tokens": ({"token_merges": ["zq qz"]}, "tokenizer.ggml.merges has 'zq qz'"),
    "merges without halves": ({"token_merges": [" "]}, "tokenizer.ggml.merges has ' '"),
    "a token twice": ({"token_list": ["a", "a"], "token_types": None}, "the same one twice"),
    "an empty token": ({"token_list": ["a", ""], "token_types": None}, "an empty token"),
    "too few types": ({"token_types": [1, 1]}, "has 2 entries for 2,560 tokens"),
}


@pytest.mark.parametrize(("changes", "words"), BROKEN.values(), ids=BROKEN)
def test_broken_tokenizers(changes, words, tmp_path):
    path = write_byte_pairs(tmp_path / "tokens.gguf", **changes)
    with pytest.raises(InvalidConfiguration) as caught:
        Tokenizer.load(path)
    assert words in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_few_scores(tmp_path):
    path, pieces, _ = scored(tmp_path / "pieces.gguf", token_scores=[0.0])
    with pytest.raises(InvalidConfiguration, match=f"has 1 entries for {len(pieces)} tokens"):
        Tokenizer.load(path)


def test_of_several_files_the_first_has_the_tokenizer(tmp_path):
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    write_byte_pairs(first)
    shutil.copyfile(write(tmp_path / "other.gguf", {"name": "m"}), second)
    assert Tokenizer.load(second).vocabulary_tokens == 2560
