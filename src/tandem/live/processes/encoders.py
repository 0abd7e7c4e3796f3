"""Loads the encoders that a server has beside its model, or makes one of that."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tandem.config.checkpoints import find_checkpoint
from tandem.config.encoders import OPTION, EncoderOptions, encoder_options
from tandem.config.options import ServeOptions
from tandem.facts.encoding import EncoderCard
from tandem.facts.errors import InvalidConfiguration
from tandem.kernels.faces import choose_kernels
from tandem.live.clock import wall_clock_s
from tandem.live.encoder import LiveEncoder
from tandem.live.encoders import LiveEncoders, ServedEncoder
from tandem.models.configuration import is_decoder
from tandem.models.decoder import Decoder
from tandem.models.encoders.decoder_encoder import LAST_TOKEN, DecoderEncoder
from tandem.models.encoders.encoder import Encoder
from tandem.models.encoders.load import load_decoder_encoder, load_encoder
from tandem.models.encoders.sentence_files import MEAN, read_longest_text, read_pooling
from tandem.models.weights import WeightForm
from tandem.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelBehind:
    """The served model: its name, what it computes with and reads, and up to how many tokens."""

    name: str
    directory: Path
    decoder: Decoder
    tokenizer: Tokenizer
    context_tokens: int


def load_encoders(
    options: ServeOptions, threads: int, others: Collection[str], model: ModelBehind | None
) -> LiveEncoders | None:
    """None where none is wanted; `others` are the names of models that are served already, and
    without a `model` in this process only what stands beside it can be. Raises
    `InvalidConfiguration`."""
    wanted = encoder_options(options.encoder_models)
    for each in wanted:
        if each.name in others:
            raise InvalidConfiguration(f"{OPTION}: another model is served as {each.name!r}")
    served = [_load(each, options, threads) for each in wanted]
    if options.embeddings and model is not None:
        served.append(_embedding(model, threads))
    return LiveEncoders(served) if served else None


def _embedding(model: ModelBehind, threads: int) -> ServedEncoder:
    """The served model, with the weights that generate."""
    if model.decoder.weights.device.type != "cpu":
        raise InvalidConfiguration(
            "embeddings: the served model gives them on CPUs only; serve an encoder beside it "
            f"(--{OPTION} name=path)"
        )
    try:
        pooling = read_pooling(model.directory, LAST_TOKEN)
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"embeddings: {error}") from error
    encoder = DecoderEncoder(model.decoder, pooling)
    batching = EncoderOptions(name=model.name, path="")
    return _served(encoder, batching, model.tokenizer, threads, model.context_tokens)


def _load(wanted: EncoderOptions, options: ServeOptions, threads: int) -> ServedEncoder:
    encoder: Encoder | DecoderEncoder
    try:
        directory = find_checkpoint(wanted.path, options.revision)
        causal = is_decoder(directory)
        pooling = read_pooling(directory, LAST_TOKEN if causal else MEAN)
        if wanted.pooling is not None:
            pooling = replace(pooling, mode=wanted.pooling)
        if wanted.normalize is not None:
            pooling = replace(pooling, normalised=wanted.normalize)
        device = torch.device("cpu")
        kernels, _ = choose_kernels(
            *(device, torch.float32, options.native_kernels),
            instruction_set=options.instruction_set,
        )
        form = WeightForm("float32", torch.float32, device)
        load = load_decoder_encoder if causal else load_encoder
        encoder = load(directory, form, kernels, pooling=pooling)
        tokenizer = Tokenizer.load(directory)
        longest = read_longest_text(directory) or encoder.spec.context_tokens
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"{OPTION}: {wanted.name}: {error}") from error
    context_tokens = min(encoder.spec.context_tokens, longest)
    return _served(encoder, wanted, tokenizer, threads, context_tokens)


def _served(
    encoder: Encoder | DecoderEncoder,
    wanted: EncoderOptions,
    tokenizer: Tokenizer,
    threads: int,
    context_tokens: int,
) -> ServedEncoder:
    spec = encoder.spec
    card = EncoderCard(
        wanted.name,
        wall_clock_s(),
        context_tokens,
        spec.vocabulary_tokens,
        spec.hidden_features,
        encoder.labels,
    )
    live = LiveEncoder(
        encoder, wanted.batching, wanted.max_queue_size, wanted.threads or threads, wanted.name
    )
    return ServedEncoder(card, tokenizer, live)
