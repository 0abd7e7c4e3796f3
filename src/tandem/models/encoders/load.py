"""From the directory of an encoder, or of a decoder that is read as one, to one that runs: checks
the files, reads them."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from tandem.facts.encoder import EncoderSpec, PoolingSpec
from tandem.kernels.coded import CodedWeight
from tandem.kernels.faces import Kernels
from tandem.models.checkpoint import EVERY, SafetensorsWeights
from tandem.models.configuration import CONFIG_NAME, is_classifier, read_headless_spec
from tandem.models.decoder import Decoder
from tandem.models.directory import read_fields
from tandem.models.encoders.configuration import (
    read_architecture,
    read_encoder_spec,
    read_label_spec,
)
from tandem.models.encoders.decoder_encoder import LAST_TOKEN, DecoderEncoder
from tandem.models.encoders.encoder import Encoder
from tandem.models.encoders.parameters import (
    PREFIXES,
    TOKEN_EMBEDDING,
    Spelling,
    all_encoder_parts,
    encoder_parts,
)
from tandem.models.encoders.sentence_files import read_pooling
from tandem.models.encoders.weights import assemble_encoder
from tandem.models.load import EMBEDDING_AS_HEAD
from tandem.models.parameters import LinearParts, TensorPart, all_parts, decoder_parts
from tandem.models.weights import Assembly, WeightForm, assemble_weights

# Of the heads of masked language models, which no encoder needs.
WORD_HEADS = ("cls.", "lm_head.", "head.", "decoder.")
# Old checkpoints store what is counted anyway.
POSITION_IDS = "embeddings.position_ids"
# Of a BERT's head that is not that of its labels.
POOLER = "pooler."
# Of a decoder's tensors; files that sentence-transformers wrote are without.
BACKBONE = "model."
LABEL_HEAD = "score.weight"


def load_encoder(
    directory: Path, form: WeightForm, kernels: Kernels, *, pooling: PoolingSpec | None = None
) -> Encoder:
    """Reads the weights of an encoder, and how its embeddings are pooled unless `pooling` says it.

    Raises `InvalidConfiguration` before reading any weight if the checkpoint is of no supported
    kind or its tensors do not fit its config.json.
    """
    spec = read_encoder_spec(directory)
    pooling = pooling or read_pooling(directory)
    has_words = read_architecture(read_fields(directory / CONFIG_NAME)).head == "words"
    with SafetensorsWeights(directory) as checkpoint:
        spelling = _spelling(spec, checkpoint)
        parts = encoder_parts(spec, spelling)
        every_part = all_encoder_parts(parts)
        unread = checkpoint.names - {part.name for part in every_part}
        ignored = {name for name in unread if _is_spare(name, spelling, has_words=has_words)}
        checkpoint.check(every_part, frozenset(ignored))
        weights = assemble_encoder(parts, Assembly(checkpoint, form, kernels))
    return Encoder(spec, weights, kernels, pooling)


def load_decoder_encoder(
    directory: Path, form: WeightForm, kernels: Kernels, *, pooling: PoolingSpec | None = None
) -> DecoderEncoder:
    """Reads the weights of a decoder but for its head, unless that is one for labels; `pooling` and
    errors as of `load_encoder`, but that the last token is taken where nothing says how embeddings
    are pooled."""
    spec = read_headless_spec(directory)
    pooling = pooling or read_pooling(directory, LAST_TOKEN)
    labels, heads = None, list[TensorPart]()
    if is_classifier(directory):
        labels = read_label_spec(read_fields(directory / CONFIG_NAME))
        heads = [TensorPart(LABEL_HEAD, (len(labels.labels), spec.hidden_features))]
    parts = all_parts(decoder_parts(spec))
    with SafetensorsWeights(directory) as checkpoint:
        prefix = BACKBONE if checkpoint.has(parts[0].name) else ""
        source = _Renamed(checkpoint, prefix)
        checkpoint.check([*map(source.part_there, parts), *heads], EMBEDDING_AS_HEAD)
        weights = assemble_weights(spec, source, form, kernels)
        assembly = Assembly(checkpoint, form, kernels)
        classifier = assembly.linear(LinearParts(tuple(heads))) if heads else None
    return DecoderEncoder(Decoder(spec, weights, kernels), pooling, labels, classifier)


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A checkpoint whose tensors have another prefix."""

    checkpoint: SafetensorsWeights
    prefix: str

    def part_there(self, part: TensorPart) -> TensorPart:
        return replace(part, name=self.prefix + part.name.removeprefix(BACKBONE))

    def read(self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY) -> Tensor:
        return self.checkpoint.read(self.part_there(part), rows, columns)

    def read_coded(
        self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY
    ) -> CodedWeight | None:
        return self.checkpoint.read_coded(self.part_there(part), rows, columns)


def _spelling(spec: EncoderSpec, checkpoint: SafetensorsWeights) -> Spelling:
    prefix = PREFIXES[spec.family]
    if not checkpoint.has(prefix + TOKEN_EMBEDDING[spec.family]):
        prefix = ""
    if checkpoint.has(f"{prefix}embeddings.LayerNorm.gamma"):
        return Spelling(prefix, "gamma", "beta")
    return Spelling(prefix)


def _is_spare(name: str, spelling: Spelling, *, has_words: bool) -> bool:
    own_name = name.removeprefix(spelling.prefix)
    spare = own_name == POSITION_IDS or own_name.startswith(POOLER)
    return spare or (has_words and name.startswith(WORD_HEADS))
