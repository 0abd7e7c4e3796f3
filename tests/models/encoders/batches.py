"""Random texts, as our ragged batches and as the padded ones of transformers."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.facts.encoder import EncodedText, PoolingMode
from tandem.kernels.faces import Kernels
from tandem.models.encoders.batch import EncoderBatch, batch_of
from tandem.models.encoders.encoder import Encoder
from tandem.models.encoders.load import load_encoder
from tandem.models.weights import WeightForm
from tests.models.encoders.tiny import VOCABULARY

CPU = torch.device("cpu")
FP32 = WeightForm("float32", torch.float32, CPU)
# Longer than a window and its halves, equal and single ones.
LENGTHS = (5, 41, 1, 96, 5, 13, 2, 70, 13, 7)


def load(checkpoint, kernels: Kernels, **options) -> Encoder:
    return load_encoder(checkpoint.directory, FP32, kernels, **options)


def text_of(seed: int, tokens: int) -> EncodedText:
    """Of two parts, without padding tokens."""
    chance = random.Random(seed)
    first = chance.randint(0, tokens)
    ids = tuple(chance.randrange(4, VOCABULARY) for _ in range(tokens))
    return EncodedText(ids, (0,) * first + (1,) * (tokens - first))


def texts_of(seed: int, lengths: Sequence[int] = LENGTHS) -> list[EncodedText]:
    return [text_of(seed * 1000 + index, tokens) for index, tokens in enumerate(lengths)]


def ragged(texts: Sequence[EncodedText]) -> EncoderBatch:
    return batch_of(texts, CPU)


def padded(texts: Sequence[EncodedText], oracle) -> dict[str, Tensor]:
    """What transformers reads; token types where the model has any."""
    padding = oracle.config.pad_token_id
    longest = max(len(text.token_ids) for text in texts)
    shape = (len(texts), longest)
    ids, types = torch.full(shape, padding), torch.zeros(shape, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.int64)
    for row, text in enumerate(texts):
        tokens = len(text.token_ids)
        ids[row, :tokens] = torch.tensor(text.token_ids)
        types[row, :tokens] = torch.tensor(text.token_types)
        mask[row, :tokens] = 1
    found = {"input_ids": ids, "attention_mask": mask}
    return found | ({"token_type_ids": types} if oracle.config.model_type == "bert" else {})


def oracle_vectors(texts: Sequence[EncodedText], oracle, mode: PoolingMode) -> Tensor:
    """Pooled states of the encoder below any head."""
    encoder = oracle.base_model
    with torch.inference_mode():
        states = encoder(**padded(texts, oracle)).last_hidden_state
    rows = [state[: len(text.token_ids)] for state, text in zip(states, texts, strict=True)]
    pooled = {"mean": lambda row: row.mean(0), "cls": lambda row: row[0]}
    return torch.stack([pooled.get(mode, lambda row: row[-1])(row) for row in rows])


def oracle_scores(texts: Sequence[EncodedText], oracle) -> Tensor:
    with torch.inference_mode():
        return oracle(**padded(texts, oracle)).logits
