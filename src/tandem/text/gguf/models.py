"""The tokenizer of a GGUF file as the parts of a tokenizer.json: pairs of bytes that are merged
(GPT-2's, `gpt2`), or pieces of text with scores (SentencePiece's, `llama`).
"""

from collections.abc import Iterator
from typing import Any

from tandem.facts.errors import InvalidConfiguration
from tandem.text.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from tandem.text.gguf.vocabulary import Vocabulary

PRE, MERGES, SCORES = (f"tokenizer.ggml.{name}" for name in ("pre", "merges", "scores"))
# What SentencePiece writes for a space.
SPACE = "▁"
Parts = dict[str, Any]


def pre_tokenizer_of(vocabulary: Vocabulary) -> PreTokenizer:
    """Raises `InvalidConfiguration` for one that is not known."""
    file = vocabulary.file
    name = file.text(PRE, "missing")
    if name not in PRE_TOKENIZERS:
        raise InvalidConfiguration(
            f"{file.path}: {PRE} is {name!r}; expected one of {', '.join(sorted(PRE_TOKENIZERS))} "
            "(take the safetensors of the same model)"
        )
    return PRE_TOKENIZERS[name]


def byte_pairs(vocabulary: Vocabulary, cutting: PreTokenizer) -> Parts:
    """Of a tokenizer that merges bytes. Raises `InvalidConfiguration`."""
    ids = {text: token_id for token_id, text in enumerate(vocabulary.texts)}
    splits: list[Parts] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in cutting.patterns
    ]
    return {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*splits, _byte_level(use_regex=cutting.words)],
        },
        "decoder": _byte_level(use_regex=True),
        "model": _merging(ids, list(_read_merges(vocabulary, ids)), ignores=cutting.whole_words),
    }


def scored_pieces(vocabulary: Vocabulary) -> Parts:
    """Of a tokenizer that merges letters, at each step into the piece of the highest score, and
    spells what no piece has in bytes. Raises `InvalidConfiguration`."""
    file, texts = vocabulary.file, vocabulary.texts
    scores = file.numbers(SCORES)
    if len(scores) != len(texts):
        raise InvalidConfiguration(
            f"{file.path}: {SCORES} has {len(scores):,} entries for {len(texts):,} tokens"
        )
    ids = {text: token_id for token_id, text in enumerate(texts)}
    added = vocabulary.special | vocabulary.written
    order = sorted((i for i in ids.values() if i not in added), key=lambda i: (-scores[i], i))
    merges = [pair for token_id in order for pair in _halves(texts[token_id], ids)]
    normalizers: list[Parts] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ]
    decoders: list[Parts] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if file.flag("tokenizer.ggml.add_space_prefix", True):
        normalizers.insert(0, {"type": "Prepend", "prepend": SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = _merging(ids, merges, ignores=False)
    model |= {"unk_token": vocabulary.named("unknown"), "fuse_unk": True, "byte_fallback": True}
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def with_spaces(vocabulary: Vocabulary) -> Vocabulary:
    """Added tokens are found in texts as they are written, and SentencePiece spells the spaces in
    them."""
    texts = list(vocabulary.texts)
    taken = set(texts)
    for token_id in vocabulary.written:
        written = texts[token_id].replace(SPACE, " ")
        if written not in taken:
            texts[token_id] = written
    return Vocabulary(vocabulary.file, texts, vocabulary.special, vocabulary.written)


def _read_merges(vocabulary: Vocabulary, ids: dict[str, int]) -> Iterator[tuple[str, str]]:
    """By rank. The tokenizers library asks that the vocabulary has both halves, and what they
    make."""
    for written in vocabulary.file.texts(MERGES):
        left, _, right = written.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise InvalidConfiguration(
                f"{vocabulary.file.path}: {MERGES} has {written[:40]!r}; expected two tokens of "
                "the vocabulary that make a third"
            )
        yield left, right


def _halves(piece: str, ids: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs of pieces that make this one, those that came first in the vocabulary first."""
    pairs = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
    known = [(left, right) for left, right in pairs if left in ids and right in ids]
    return sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))


def _merging(ids: dict[str, int], merges: list[tuple[str, str]], *, ignores: bool) -> Parts:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignores,
        "vocab": ids,
        "merges": merges,
    }


def _byte_level(*, use_regex: bool) -> Parts:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }
