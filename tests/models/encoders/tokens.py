"""A tokenizer of letters and a few pieces for tiny encoders, with the templates of families."""

from pathlib import Path

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz?."
TEMPLATES = {
    "bert_labels": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    # Its tokenizer may count types that its model does not read.
    "xlm_roberta_score": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1"),
    "modernbert_labels": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"),
}


def word_pieces(template: tuple[str, str]) -> tokenizers.Tokenizer:
    pieces = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), "which", "ring", "##ing"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    core = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    single, pair = template
    special = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    core.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=special
    )
    return core


def write_tokenizer(directory: Path, name: str, padding_token: int) -> PreTrainedTokenizerFast:
    """Beside the encoder of that name."""
    types = ["token_type_ids"] if name == "bert_labels" else []
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=word_pieces(TEMPLATES[name]),
        pad_token=SPECIAL[padding_token],
        model_input_names=["input_ids", "attention_mask", *types],
    )
    theirs.save_pretrained(directory)
    return theirs
