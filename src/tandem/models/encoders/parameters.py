"""Which tensors an encoder has: names, shapes, and how they fuse. Pure data."""

from collections.abc import Iterator
from dataclasses import dataclass

from tandem.facts.encoder import EncoderFamily, EncoderSpec
from tandem.models.parameters import LinearParts, TensorPart

# Before the names of an encoder's tensors where it lies in a model with a head.
PREFIXES: dict[EncoderFamily, str] = {
    "bert": "bert.",
    "roberta": "roberta.",
    "modernbert": "model.",
}
TOKEN_EMBEDDING: dict[EncoderFamily, str] = {
    "bert": "embeddings.word_embeddings.weight",
    "roberta": "embeddings.word_embeddings.weight",
    "modernbert": "embeddings.tok_embeddings.weight",
}


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a checkpoint names its tensors. The first ones of BERT call a norm's weight and bias
    `gamma` and `beta`."""

    prefix: str = ""
    norm_weight: str = "weight"
    norm_bias: str = "bias"


@dataclass(frozen=True, slots=True)
class NormParts:
    weight: TensorPart
    bias: TensorPart | None


@dataclass(frozen=True, slots=True)
class EncoderLayerParts:
    """`attention_norm` is None where a layer reads what the embeddings' norm gave."""

    attention_norm: NormParts | None
    qkv: LinearParts
    attention_output: LinearParts
    feed_forward_norm: NormParts
    up: LinearParts
    down: LinearParts


@dataclass(frozen=True, slots=True)
class HeadParts:
    dense: LinearParts
    norm: NormParts | None
    classifier: LinearParts


@dataclass(frozen=True, slots=True)
class EncoderParts:
    token_embedding: TensorPart
    position_embedding: TensorPart | None
    type_embedding: TensorPart | None
    embedding_norm: NormParts
    layers: tuple[EncoderLayerParts, ...]
    final_norm: NormParts | None
    head: HeadParts | None


def encoder_parts(spec: EncoderSpec, spelling: Spelling) -> EncoderParts:
    """The tensors of an encoder, in the order of its forward pass."""
    names = _Names(spec, spelling)
    return names.modernbert() if spec.family == "modernbert" else names.bert()


@dataclass(frozen=True, slots=True)
class _Names:
    spec: EncoderSpec
    spelling: Spelling

    def bert(self) -> EncoderParts:
        spec = self.spec
        return EncoderParts(
            token_embedding=self.tokens(),
            position_embedding=self.table("position_embeddings", spec.position_rows),
            type_embedding=self.table("token_type_embeddings", spec.token_types),
            embedding_norm=self.norm("embeddings.LayerNorm"),
            layers=tuple(self.bert_layer(f"encoder.layer.{i}") for i in range(spec.layers)),
            final_norm=None,
            head=self.bert_head(),
        )

    def bert_layer(self, prefix: str) -> EncoderLayerParts:
        spec, hidden = self.spec, self.spec.hidden_features
        own, inner = f"{prefix}.attention.self", spec.feed_forward_features
        qkv = [self.inside(f"{own}.{name}", (hidden, hidden)) for name in ("query", "key", "value")]
        return EncoderLayerParts(
            attention_norm=self.norm(f"{prefix}.attention.output.LayerNorm"),
            qkv=LinearParts(
                tuple(part for linear in qkv for part in linear.weights),
                tuple(part for linear in qkv for part in linear.biases),
            ),
            attention_output=self.inside(f"{prefix}.attention.output.dense", (hidden, hidden)),
            feed_forward_norm=self.norm(f"{prefix}.output.LayerNorm"),
            up=self.inside(f"{prefix}.intermediate.dense", (inner, hidden)),
            down=self.inside(f"{prefix}.output.dense", (hidden, inner)),
        )

    def bert_head(self) -> HeadParts | None:
        if self.spec.head is None:
            return None
        hidden, labels = self.spec.hidden_features, len(self.spec.head.scored.labels)
        if self.spec.family == "roberta":
            dense = _linear("classifier.dense", (hidden, hidden))
            return HeadParts(dense, None, _linear("classifier.out_proj", (labels, hidden)))
        dense = self.inside("pooler.dense", (hidden, hidden))
        return HeadParts(dense, None, _linear("classifier", (labels, hidden)))

    def modernbert(self) -> EncoderParts:
        spec = self.spec
        return EncoderParts(
            token_embedding=self.tokens(),
            position_embedding=None,
            type_embedding=None,
            embedding_norm=self.norm("embeddings.norm"),
            layers=tuple(self.modernbert_layer(index) for index in range(spec.layers)),
            final_norm=self.norm("final_norm"),
            head=self.modernbert_head(),
        )

    def modernbert_layer(self, index: int) -> EncoderLayerParts:
        spec, hidden = self.spec, self.spec.hidden_features
        prefix, inner = f"layers.{index}", spec.feed_forward_features
        biased, mlp_biased = spec.attention_bias, spec.feed_forward_bias
        return EncoderLayerParts(
            attention_norm=self.norm(f"{prefix}.attn_norm") if index else None,
            qkv=self.inside(f"{prefix}.attn.Wqkv", (3 * hidden, hidden), biased),
            attention_output=self.inside(f"{prefix}.attn.Wo", (hidden, hidden), biased),
            feed_forward_norm=self.norm(f"{prefix}.mlp_norm"),
            up=self.inside(f"{prefix}.mlp.Wi", (2 * inner, hidden), mlp_biased),
            down=self.inside(f"{prefix}.mlp.Wo", (hidden, inner), mlp_biased),
        )

    def modernbert_head(self) -> HeadParts | None:
        head, hidden = self.spec.head, self.spec.hidden_features
        if head is None:
            return None
        return HeadParts(
            dense=_linear("head.dense", (hidden, hidden), head.dense_bias),
            norm=self.norm("head.norm", ""),
            classifier=_linear("classifier", (len(head.scored.labels), hidden)),
        )

    def tokens(self) -> TensorPart:
        name = self.spelling.prefix + TOKEN_EMBEDDING[self.spec.family]
        return TensorPart(name, (self.spec.vocabulary_tokens, self.spec.hidden_features))

    def table(self, name: str, rows: int) -> TensorPart:
        full_name = f"{self.spelling.prefix}embeddings.{name}.weight"
        return TensorPart(full_name, (rows, self.spec.hidden_features))

    def norm(self, name: str, prefix: str | None = None) -> NormParts:
        spelling, shape = self.spelling, (self.spec.hidden_features,)
        full_name = (spelling.prefix if prefix is None else prefix) + name
        bias = TensorPart(f"{full_name}.{spelling.norm_bias}", shape)
        weight = TensorPart(f"{full_name}.{spelling.norm_weight}", shape)
        return NormParts(weight, bias if self.spec.norm_bias else None)

    def inside(self, name: str, shape: tuple[int, int], biased: bool = True) -> LinearParts:
        """A linear layer of the encoder, not of its head."""
        return _linear(self.spelling.prefix + name, shape, biased)


def _linear(name: str, shape: tuple[int, int], biased: bool = True) -> LinearParts:
    bias = (TensorPart(f"{name}.bias", shape[:1]),) if biased else ()
    return LinearParts((TensorPart(f"{name}.weight", shape),), bias)


def all_encoder_parts(parts: EncoderParts) -> tuple[TensorPart, ...]:
    """Every tensor once, in the order of the forward pass."""
    tables = (parts.token_embedding, parts.position_embedding, parts.type_embedding)
    found = [table for table in tables if table is not None]
    found.extend(_of_norm(parts.embedding_norm))
    for layer in parts.layers:
        found.extend(_of_norm(layer.attention_norm))
        for linear in (layer.qkv, layer.attention_output):
            found.extend(linear.weights + linear.biases)
        found.extend(_of_norm(layer.feed_forward_norm))
        for linear in (layer.up, layer.down):
            found.extend(linear.weights + linear.biases)
    found.extend(_of_norm(parts.final_norm))
    if parts.head is not None:
        found.extend(parts.head.dense.weights + parts.head.dense.biases)
        found.extend(_of_norm(parts.head.norm))
        found.extend(parts.head.classifier.weights + parts.head.classifier.biases)
    return tuple(found)


def _of_norm(norm: NormParts | None) -> Iterator[TensorPart]:
    if norm is not None:
        yield norm.weight
        if norm.bias is not None:
            yield norm.bias
