"""What a GGUF file says of texts, as the files of a checkpoint's folder would say it: tokenizer,
special tokens, chat templates, recommended sampling.

Texts are not normalised, as llama.cpp does not: the file has no place that says so.
"""

import json
from pathlib import Path
from typing import Any

from tandem.facts.errors import InvalidConfiguration
from tandem.gguf.file import GgufFile, open_gguf
from tandem.gguf.names import first_shard
from tandem.text.files import TokenizerFiles
from tandem.text.gguf.models import byte_pairs, pre_tokenizer_of, scored_pieces, with_spaces
from tandem.text.gguf.vocabulary import Vocabulary, read_vocabulary

MODEL, TEMPLATE = "tokenizer.ggml.model", "tokenizer.chat_template"
# What chat templates call the tokens that the file calls so.
SPECIAL_TOKENS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
    "mask_token": "mask",
}
# The ends of a text, of a turn and of a message.
ENDS = ("eos", "eot", "eom")
# Many files name the end of a text alone, and their models end a turn with one of these.
END_MARKS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<|EOT|>",
    }
)
SAMPLING = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


def read_gguf_text(path: Path) -> TokenizerFiles:
    """Raises `InvalidConfiguration` naming the file and what it lacks."""
    file = open_gguf(first_shard(path))
    vocabulary = read_vocabulary(file)
    kind = file.text(MODEL)
    if kind == "gpt2":
        cutting = pre_tokenizer_of(vocabulary)
        parts, adds_bos = byte_pairs(vocabulary, cutting), cutting.adds_bos
    elif kind == "llama":
        vocabulary = with_spaces(vocabulary)
        parts, adds_bos = scored_pieces(vocabulary), True
    else:
        raise InvalidConfiguration(
            f"{file.path}: {MODEL} is {kind!r}; expected gpt2 (pairs of bytes) or llama "
            "(SentencePiece)"
        )
    names = {name: vocabulary.named(named) for name, named in SPECIAL_TOKENS.items()}
    adds_bos = file.flag("tokenizer.ggml.add_bos_token", adds_bos)
    return TokenizerFiles(
        tokenizer_json=json.dumps(_tokenizer(vocabulary, parts)),
        tokenizer_config={
            **{name: text for name, text in names.items() if text is not None},
            "add_bos_token": adds_bos and names["bos_token"] is not None,
        },
        generation_config=_sampling(file) | {"eos_token_id": _ends(vocabulary)},
        config={},
        chat_templates=_templates(file),
        sampling_source=str(file.path),
    )


def _tokenizer(vocabulary: Vocabulary, parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": _ending(vocabulary),
        **parts,
    }


def _ending(vocabulary: Vocabulary) -> dict[str, Any] | None:
    """Where the model was trained on texts that end with a token for that."""
    text, token_id = vocabulary.named("eos"), vocabulary.named_id("eos")
    if text is None or not vocabulary.file.flag("tokenizer.ggml.add_eos_token", False):
        return None
    first, second, end = (
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 0}},
        {"SpecialToken": {"id": text, "type_id": 0}},
    )
    return {
        "type": "TemplateProcessing",
        "single": [first, end],
        "pair": [first, end, second, end],
        "special_tokens": {text: {"id": text, "ids": [token_id], "tokens": [text]}},
    }


def _ends(vocabulary: Vocabulary) -> list[int]:
    named = [vocabulary.named_id(name) for name in ENDS]
    marks = [i for i in sorted(vocabulary.special) if vocabulary.texts[i] in END_MARKS]
    return list(dict.fromkeys(i for i in [*named, *marks] if i is not None))


def _templates(file: GgufFile) -> dict[str, str]:
    templates = {
        key.removeprefix(f"{TEMPLATE}."): file.text(key)
        for key in file.values
        if key.startswith(f"{TEMPLATE}.")
    }
    if file.has(TEMPLATE):
        templates["default"] = file.text(TEMPLATE)
    return templates


def _sampling(file: GgufFile) -> dict[str, object]:
    keys = {name: f"general.sampling.{named}" for name, named in SAMPLING.items()}
    return {name: file.values[key] for name, key in keys.items() if file.has(key)}
