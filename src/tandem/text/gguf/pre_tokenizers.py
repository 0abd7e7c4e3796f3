"""How texts are cut into words before pairs of bytes are merged: GGUF names it in one word
(`tokenizer.ggml.pre`), and the patterns are those that the models' own tokenizers have.

The names are those of llama.cpp, which writes them; here are those that models of the supported
families have.
"""

from dataclasses import dataclass

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"

DIGIT, UP_TO_THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
QWEN2 = f"{CONTRACTIONS}|{LETTERS}|{DIGIT}|{MARKS}|{BLANKS}"
LLAMA3 = f"{CONTRACTIONS}|{LETTERS}|{UP_TO_THREE_DIGITS}|{MARKS}|{BLANKS}"
TEKKEN = rf"{CASED}|{DIGIT}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{BLANKS}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Texts are split by each of `patterns` in turn, what matches and what lies between apart, and
    with `words` by GPT-2's pattern at last. With `whole_words` a word that is a token is not
    merged; `adds_bos` unless the file says otherwise."""

    patterns: tuple[str, ...]
    words: bool = False
    whole_words: bool = False
    adds_bos: bool = False


_GPT2 = PreTokenizer((), words=True)
_DIGITS_APART = PreTokenizer((DIGIT,), words=True)
_QWEN2 = PreTokenizer((QWEN2,))
_LLAMA3 = PreTokenizer((LLAMA3,), whole_words=True, adds_bos=True)

PRE_TOKENIZERS = {
    "gpt-2": _GPT2,
    "starcoder": _DIGITS_APART,
    "refact": _DIGITS_APART,
    "smollm": _DIGITS_APART,
    "codeshell": _DIGITS_APART,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "dbrx": PreTokenizer((LLAMA3,)),
    "smaug-bpe": PreTokenizer((LLAMA3,)),
    "tekken": PreTokenizer((TEKKEN,), whole_words=True, adds_bos=True),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", DIGIT)
    ),
}
