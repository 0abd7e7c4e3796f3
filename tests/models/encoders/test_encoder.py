"""A duel: our ragged batches against the padded ones of transformers; and that no sequence's bits
depend on the others."""

import random
from dataclasses import replace

import pytest
import torch

from tandem.facts.encoder import EncodedText, PoolingSpec
from tandem.kernels.faces import reference_kernels
from tandem.models.encoders.attention import LOCAL_QUERIES
from tests.models.encoders.batches import (
    load,
    oracle_scores,
    oracle_vectors,
    padded,
    ragged,
    text_of,
    texts_of,
)
from tests.models.encoders.tiny import CLASSIFIERS, MODELS

# Measured: 1.1e-5 at worst, over states of standard deviation 1; torch itself differs by threads.
TOLERANCE = 3e-5


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_vectors(encoders, kernels, name):
    checkpoint, texts = encoders(name), texts_of(1)
    for mode in ("mean", "cls", "last"):
        encoder = load(checkpoint, kernels, pooling=PoolingSpec(mode))
        expected = oracle_vectors(texts, checkpoint.oracle, mode)
        assert expected.std() > 0.3
        assert_close(encoder.embed(ragged(texts)), expected)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_scores(encoders, kernels, name):
    checkpoint, texts = encoders(name), texts_of(2)
    encoder = load(checkpoint, kernels)
    expected = oracle_scores(texts, checkpoint.oracle)
    assert expected.std() > 0.1
    found = encoder.scores(ragged(texts))
    assert found.shape == (len(texts), len(encoder.labels.labels))
    assert_close(found, expected)
    # The encoder below the head gives vectors, too.
    vectors = oracle_vectors(texts, checkpoint.oracle, "mean")
    assert_close(encoder.embed(ragged(texts)), vectors)


def test_token_types_count_where_the_family_reads_them(encoders):
    for name, counts in (("bert", True), ("roberta", False), ("modernbert", False)):
        encoder, text = load(encoders(name), reference_kernels()), text_of(3, 20)
        other = EncodedText(text.token_ids, (0,) * 20)
        found = encoder.embed(ragged([text, other]))
        assert torch.equal(found[0], found[1]) != counts


def test_padding_tokens_within_a_text_have_no_position(encoders):
    checkpoint = encoders("xlm_roberta")
    texts = texts_of(4, (9, 9, 20))
    ids = list(texts[1].token_ids)
    ids[3] = ids[4] = checkpoint.oracle.config.pad_token_id
    texts[1] = replace(texts[1], token_ids=tuple(ids))
    found = load(checkpoint, reference_kernels()).embed(ragged(texts))
    assert_close(found, oracle_vectors(texts, checkpoint.oracle, "mean"))


def test_long_sequences_are_attended_in_pieces(encoders, kernels):
    checkpoint, texts = encoders("modernbert_long"), texts_of(5, (600, 20, 300, 600))
    assert max(len(text.token_ids) for text in texts) > 2 * LOCAL_QUERIES
    found = load(checkpoint, kernels).embed(ragged(texts))
    assert_close(found, oracle_vectors(texts, checkpoint.oracle, "mean"))


def test_normalised_vectors_have_length_one(encoders):
    checkpoint, texts = encoders("bert"), texts_of(6)
    encoder = load(checkpoint, reference_kernels(), pooling=PoolingSpec("cls", normalised=True))
    expected = oracle_vectors(texts, checkpoint.oracle, "cls")
    assert_close(encoder.embed(ragged(texts)), torch.nn.functional.normalize(expected))


def test_a_batch_of_nothing(encoders, kernels):
    assert load(encoders("bert"), kernels).embed(ragged([])).shape == (0, 64)
    assert load(encoders("roberta_labels"), kernels).scores(ragged([])).shape == (0, 2)


def test_what_is_too_long_is_a_broken_invariant(encoders):
    encoder = load(encoders("roberta"), reference_kernels())
    assert encoder.spec.context_tokens == 96
    with pytest.raises(AssertionError):
        encoder.embed(ragged([text_of(1, 97)]))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["bert", "bert_odd", "roberta", "modernbert", *CLASSIFIERS])
def test_no_sequence_depends_on_its_company(encoders, native, name, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        encoder = load(encoders(name), native, pooling=PoolingSpec("mean", normalised=True))
        chance = random.Random(name)
        texts = texts_of(7, [chance.choice((1, 2, 5, 31, 32, 33, 64, 96)) for _ in range(40)])
        compute = [encoder.embed] + ([encoder.scores] if encoder.spec.head else [])
        for each in compute:
            together = each(ragged(texts))
            alone = torch.cat([each(ragged([text])) for text in texts])
            assert torch.equal(together, alone)
            order = chance.sample(range(len(texts)), 11)
            assert torch.equal(each(ragged([texts[i] for i in order])), alone[order])
    finally:
        torch.set_num_threads(before)


def test_the_oracle_reads_what_we_read(encoders):
    """Else equal vectors would prove nothing of pairs."""
    found = padded(texts_of(1), encoders("bert").oracle)
    assert found["token_type_ids"].sum() > 0
