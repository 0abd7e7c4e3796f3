"""Loads the encoders that a server has beside its model."""

from collections.abc import Collection
from dataclasses import replace

import torch

from tandem.config.encoders import OPTION, EncoderOptions, encoder_options
from tandem.config.options import ServeOptions
from tandem.facts.encoding import EncoderCard
from tandem.facts.errors import InvalidConfiguration
from tandem.kernels.faces import choose_kernels
from tandem.live.clock import wall_clock_s
from tandem.live.encoder import LiveEncoder
from tandem.live.encoders import LiveEncoders, ServedEncoder
from tandem.models.directory import find_model
from tandem.models.encoders.load import load_encoder
from tandem.models.encoders.sentence_files import read_pooling
from tandem.models.weights import WeightForm
from tandem.text.tokenizer import Tokenizer


def load_encoders(
    options: ServeOptions, threads: int, others: Collection[str]
) -> LiveEncoders | None:
    """None where none is wanted; `others` are the names of models that are served already. Raises
    `InvalidConfiguration`."""
    wanted = encoder_options(options.encoder_models)
    if not wanted:
        return None
    for each in wanted:
        if each.name in others:
            raise InvalidConfiguration(f"{OPTION}: another model is served as {each.name!r}")
    return LiveEncoders([_load(each, options, threads) for each in wanted])


def _load(wanted: EncoderOptions, options: ServeOptions, threads: int) -> ServedEncoder:
    try:
        directory = find_model(wanted.path, options.revision)
        pooling = read_pooling(directory)
        if wanted.pooling is not None:
            pooling = replace(pooling, mode=wanted.pooling)
        if wanted.normalize is not None:
            pooling = replace(pooling, normalised=wanted.normalize)
        device = torch.device("cpu")
        kernels, _ = choose_kernels(device, torch.float32, options.native_kernels)
        form = WeightForm("float32", torch.float32, device)
        encoder = load_encoder(directory, form, kernels, pooling=pooling)
        tokenizer = Tokenizer.load(directory)
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"{OPTION}: {wanted.name}: {error}") from error
    spec = encoder.spec
    card = EncoderCard(
        wanted.name,
        wall_clock_s(),
        spec.context_tokens,
        spec.vocabulary_tokens,
        spec.hidden_features,
        spec.head,
    )
    live = LiveEncoder(encoder, wanted.batching, wanted.max_queue_size, threads)
    return ServedEncoder(card, tokenizer, live)
