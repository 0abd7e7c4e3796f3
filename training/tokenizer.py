"""Trains the tokenizer: byte-level BPE in which digits stand alone and every byte has a token.

python training/tokenizer.py OUT.json
"""

import sys
from collections.abc import Iterator
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from chat import Part
from data import chat_parts, tool_parts
from tandem.bench.tasks.task import ADJECTIVES, NOUNS, VALUES

VOCABULARY = 2560
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# The pattern of the Qwen tokenizers: words with one leading space, single digits, runs of signs.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ROUNDS = 6000
_WORD_REPEATS = 300


def train_tokenizer(seed: int) -> Tokenizer:
    """The tokenizer of both bundled models."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytewise])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKUP_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(Random(seed)), trainer)
    # Not special: a reply's tool call has to survive decoding that skips special tokens.
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS]
    )
    return tokenizer


def _texts(rng: Random) -> Iterator[str]:
    for _ in range(_ROUNDS):
        for parts in (chat_parts(rng), chat_parts(rng), tool_parts(rng)):
            yield _without_markup(parts)
    # Every word of the lists becomes one token.
    words = " ".join(("", *ADJECTIVES, *NOUNS, *VALUES))
    for _ in range(_WORD_REPEATS):
        yield words


def _without_markup(parts: list[Part]) -> str:
    text = "".join(part.text for part in parts)
    for token in (*SPECIAL_TOKENS, *MARKUP_TOKENS):
        text = text.replace(token, "\n")
    return text


if __name__ == "__main__":
    train_tokenizer(seed=1).save(sys.argv[1])
