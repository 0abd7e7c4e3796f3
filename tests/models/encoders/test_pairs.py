"""From queries and documents as text to their scores, against transformers with its tokenizer."""

import shutil

import pytest
import torch

from tandem.kernels.faces import reference_kernels
from tandem.models.encoders.load import load_encoder
from tandem.text.encoder_input import encode_inputs
from tandem.text.tokenizer import Tokenizer
from tests.models.encoders.batches import FP32, ragged
from tests.models.encoders.tokens import TEMPLATES, write_tokenizer

PAIRS = [
    ("Which planet has rings?", "Saturn. It has many."),
    ("which planet has rings?", "A cat sleeps on the mat. " * 5),
    ("a very long question that nobody would ask, would they? " * 2, "Rings are of ice."),
    ("ünïcode?", "UNICODE."),
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_pairs_score_as_with_transformers(encoders, tmp_path, name):
    checkpoint = encoders(name)
    directory = shutil.copytree(checkpoint.directory, tmp_path / name)
    theirs = write_tokenizer(directory, name, checkpoint.oracle.config.pad_token_id)
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
