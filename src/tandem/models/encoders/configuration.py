"""Reads the config.json of an encoder into its description (`EncoderSpec`), and refuses what cannot
be run.

Reads the spellings of transformers 4 and 5; imports neither.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tandem.facts.encoder import (
    EncoderAttention,
    EncoderFamily,
    EncoderSpec,
    HeadActivation,
    HeadSpec,
    LabelProblem,
    LabelSpec,
    PoolingMode,
)
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import RopeSpec
from tandem.models.configuration import CONFIG_NAME, read_rope
from tandem.models.directory import Fields, read_fields
from tandem.models.encoders.sentence_files import read_longest_text
from tandem.models.families import FULL, SLIDING

GELU = "gelu"
BERT_EPS, MODERNBERT_EPS = 1e-12, 1e-5
DEFAULT_LABELS = 2
LOCAL_ATTENTION_TOKENS = 128
# A ModernBERT looks at the whole sequence in each third layer.
LAYERS_A_GLOBAL = 3
THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
PROBLEMS: tuple[LabelProblem, ...] = (
    "single_label_classification",
    "multi_label_classification",
    "regression",
)
UNSUPPORTED_FIELDS = {
    "quantization_config": "quantised checkpoints; take the original weights and choose a storage",
    "compression_config": "compressed checkpoints; take the original weights",
    "is_decoder": "causal models of this family",
    "add_cross_attention": "cross attention",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What an entry of `architectures` means. The head of a masked language model (`words`) is not
    read: its checkpoint is taken for the encoder below."""

    family: EncoderFamily
    head: Literal["none", "words", "labels"] = "none"


_PREFIXES: tuple[tuple[str, EncoderFamily], ...] = (
    ("Bert", "bert"),
    ("ModernBert", "modernbert"),
    ("Roberta", "roberta"),
    ("XLMRoberta", "roberta"),
)
ARCHITECTURES = {
    name: architecture
    for prefix, family in _PREFIXES
    for name, architecture in (
        (f"{prefix}Model", Architecture(family)),
        (f"{prefix}ForMaskedLM", Architecture(family, "words")),
        (f"{prefix}ForSequenceClassification", Architecture(family, "labels")),
    )
}
# Some files name the model type alone.
ARCHITECTURE_OF_TYPE = {
    "bert": "BertModel",
    "modernbert": "ModernBertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
}


def read_encoder_spec(directory: Path) -> EncoderSpec:
    """The encoder in a directory. Raises `InvalidConfiguration`, one line that names the field."""
    spec = parse_encoder_spec(read_fields(directory / CONFIG_NAME))
    longest_tokens = read_longest_text(directory) or spec.context_tokens
    return replace(spec, context_tokens=min(spec.context_tokens, longest_tokens))


def parse_encoder_spec(config: Fields) -> EncoderSpec:
    """As `read_encoder_spec`, of a file that was read, whose positions alone bound a sequence."""
    architecture = read_architecture(config)
    for name, what in UNSUPPORTED_FIELDS.items():
        if config.values.get(name):
            raise InvalidConfiguration(f"{config.label}: {name} is set; Tandem cannot run {what}")
    heads, hidden_features = config.integer("num_attention_heads"), config.integer("hidden_size")
    if hidden_features % heads:
        config.refuse("hidden_size", f"a multiple of num_attention_heads, which is {heads}")
    if architecture.family == "modernbert":
        return _read_modernbert(config, architecture)
    return _read_bert(config, architecture)


def read_architecture(config: Fields) -> Architecture:
    names = config.texts("architectures")
    model_type = config.text("model_type", "")
    name = names[0] if names else ARCHITECTURE_OF_TYPE.get(model_type, model_type)
    if name not in ARCHITECTURES:
        raise InvalidConfiguration(
            f"{config.label}: architecture {name or 'missing'!r} is no supported encoder; "
            f"expected one of {', '.join(sorted(ARCHITECTURES))}"
        )
    return ARCHITECTURES[name]


def _read_bert(config: Fields, architecture: Architecture) -> EncoderSpec:
    """BERT, and RoBERTa, which has another head and counts positions from its padding token."""
    _require_gelu(config, "hidden_act")
    if config.text("position_embedding_type", "absolute") != "absolute":
        config.refuse("position_embedding_type", "absolute; no other kind is supported")
    is_roberta = architecture.family == "roberta"
    position_rows = config.integer("max_position_embeddings")
    padding_token = config.whole("pad_token_id", 1) if is_roberta else None
    skipped = 0 if padding_token is None else padding_token + 1
    if position_rows <= skipped:
        config.refuse("max_position_embeddings", f"more than {skipped}: pad_token_id and before")
    return EncoderSpec(
        family=architecture.family,
        hidden_features=config.integer("hidden_size"),
        feed_forward_features=config.integer("intermediate_size"),
        heads=config.integer("num_attention_heads"),
        vocabulary_tokens=config.integer("vocab_size"),
        context_tokens=position_rows - skipped,
        norm_eps=config.number("layer_norm_eps", BERT_EPS),
        attention=(EncoderAttention(),) * config.integer("num_hidden_layers"),
        position_rows=position_rows,
        padding_token=padding_token,
        token_types=config.integer("type_vocab_size", 2),
        reads_token_types=not is_roberta,
        head=_read_head(config, architecture, "cls", "tanh"),
        weight_dtype=_weight_dtype(config),
    )


def _read_modernbert(config: Fields, architecture: Architecture) -> EncoderSpec:
    _require_gelu(config, "hidden_activation")
    pooling = config.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        config.refuse("classifier_pooling", "cls or mean")
    head = _read_head(config, architecture, "mean" if pooling == "mean" else "cls", "gelu")
    if head is not None:
        _require_gelu(config, "classifier_activation")
        head = replace(head, dense_bias=config.flag("classifier_bias", False), normed=True)
    context_tokens = config.integer("max_position_embeddings")
    return EncoderSpec(
        family=architecture.family,
        hidden_features=config.integer("hidden_size"),
        feed_forward_features=config.integer("intermediate_size"),
        heads=config.integer("num_attention_heads"),
        vocabulary_tokens=config.integer("vocab_size"),
        context_tokens=context_tokens,
        norm_eps=config.number("norm_eps", MODERNBERT_EPS),
        attention=_read_layers(config, context_tokens),
        pre_norm=True,
        gated=True,
        norm_bias=config.flag("norm_bias", False),
        attention_bias=config.flag("attention_bias", False),
        feed_forward_bias=config.flag("mlp_bias", False),
        head=head,
        weight_dtype=_weight_dtype(config),
    )


def _read_layers(config: Fields, context_tokens: int) -> tuple[EncoderAttention, ...]:
    layers = config.integer("num_hidden_layers")
    kinds = config.texts("layer_types")
    if not kinds:
        every = config.integer("global_attn_every_n_layers", LAYERS_A_GLOBAL)
        kinds = tuple(SLIDING if layer % every else FULL for layer in range(layers))
    if len(kinds) != layers or not set(kinds) <= {FULL, SLIDING}:
        config.refuse("layer_types", f"{layers} entries of {FULL} or {SLIDING}")
    reach_tokens = config.integer("local_attention", LOCAL_ATTENTION_TOKENS) // 2
    of_kind = {
        FULL: EncoderAttention(None, _read_rope(config, FULL, context_tokens)),
        SLIDING: EncoderAttention(reach_tokens, _read_rope(config, SLIDING, context_tokens)),
    }
    return tuple(of_kind[kind] for kind in kinds)


def _read_rope(config: Fields, kind: str, context_tokens: int) -> RopeSpec:
    """Given by kind of layer, or as a field for each theta and one scaling for both."""
    name, default_theta = THETAS[kind]
    by_kind = config.group("rope_parameters")
    parameters = None if by_kind is None else by_kind.group(kind)
    scaling = config.group("rope_scaling") if parameters is None else parameters
    values = {} if scaling is None else scaling.values
    theta = config.number(name, default_theta)
    rope = Fields(f"{config.label}: {kind}", {"rope_theta": theta, "rope_parameters": values})
    return read_rope(rope, context_tokens)


def _read_head(
    config: Fields,
    architecture: Architecture,
    pooling: PoolingMode,
    activation: HeadActivation,
) -> HeadSpec | None:
    if architecture.head != "labels":
        return None
    return HeadSpec(read_label_spec(config), pooling, activation)


def read_label_spec(config: Fields) -> LabelSpec:
    """What a classifier's scores are of. Raises `InvalidConfiguration`."""
    labels = _read_labels(config)
    default = "regression" if len(labels) == 1 else "single_label_classification"
    named = config.text("problem_type", default)
    problem = next((each for each in PROBLEMS if each == named), None)
    if problem is None:
        config.refuse("problem_type", f"one of {', '.join(PROBLEMS)}")
    return LabelSpec(labels, problem)


def _read_labels(config: Fields) -> tuple[str, ...]:
    """By their numbers. A file without names has only their count, or not even that."""
    names = config.group("id2label")
    if names is None:
        count = config.integer("num_labels", DEFAULT_LABELS)
        return tuple(f"LABEL_{label}" for label in range(count))
    found = {number: name for number, name in names.values.items() if isinstance(name, str)}
    wanted = [str(label) for label in range(len(names.values))]
    if not wanted or set(found) != set(wanted):
        config.refuse("id2label", "a text for each number from 0 on")
    return tuple(found[number] for number in wanted)


def _require_gelu(config: Fields, name: str) -> None:
    if config.text(name, GELU) != GELU:
        config.refuse(name, f"{GELU}; no other activation is supported")


def _weight_dtype(config: Fields) -> str:
    return config.text("dtype", config.text("torch_dtype", "float32"))
