"""From queries and documents as text to their scores, against transformers with its tokenizer."""

import shutil

import pytest
import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tandem.kernels.faces import reference_kernels
from tandem.models.encoders.load import load_encoder
from tandem.text.encoder_input import encode_inputs
from tandem.text.tokenizer import Tokenizer
from tests.models.encoders.batches import FP32, ragged

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz?."
PAIRS = [
    ("Which planet has rings?", "Saturn. It has many."),
    ("which planet has rings?", "A cat sleeps on the mat. " * 5),
    ("a very long question that nobody would ask, would they? " * 2, "Rings are of ice."),
    ("ünïcode?", "UNICODE."),
]
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


@pytest.mark.parametrize("name", TEMPLATES)
def test_pairs_score_as_with_transformers(encoders, tmp_path, name):
    checkpoint = encoders(name)
    directory = shutil.copytree(checkpoint.directory, tmp_path / name)
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=word_pieces(TEMPLATES[name]),
        pad_token=SPECIAL[checkpoint.oracle.config.pad_token_id],
        model_input_names=["input_ids", "attention_mask"]
        + (["token_type_ids"] if name == "bert_labels" else []),
    )
    theirs.save_pretrained(directory)
    encoder = load_encoder(directory, FP32, reference_kernels())
    limit_tokens = encoder.spec.context_tokens
    texts = encode_inputs(Tokenizer.load(directory), PAIRS, limit_tokens, truncate=True)
    read = theirs(
        *map(list, zip(*PAIRS, strict=True)),
        truncation=True,
        max_length=limit_tokens,
        padding=True,
        return_tensors="pt",
    )
    assert len(texts[1].token_ids) == limit_tokens
    assert [len(text.token_ids) for text in texts] == read["attention_mask"].sum(1).tolist()
    with torch.inference_mode():
        expected = checkpoint.oracle(**read).logits
    torch.testing.assert_close(encoder.scores(ragged(texts)), expected, atol=1e-5, rtol=0)
