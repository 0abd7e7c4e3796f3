"""Which tensors a model has: names, shapes, how they fuse, and along which axis they may be split.

Pure data. A rank of a tensor-parallel group reads each part's slice along `split_axis`, in steps
of `split_unit` (a head is never cut), and fuses the slices in the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tandem.facts.model import ModelSpec

# Rows that are read or drawn at once: memory beside the weights stays small.
SLAB_ROWS = 1024


@dataclass(frozen=True, slots=True)
class TensorPart:
    """One tensor of a checkpoint. `split_axis` None: every rank holds all of it. Where ranks
    outnumber the units, several hold the same one if it `repeats`, or some hold none."""

    name: str
    shape: tuple[int, ...]
    split_axis: int | None = None
    split_unit: int = 1
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class LinearParts:
    """A linear layer: parts stacked along their first axis, biases (if any) alike.

    Where the weights are split along axis 1 the ranks' outputs are summed, so that only one of
    them may add the bias: such a bias has no `split_axis`.
    """

    weights: tuple[TensorPart, ...]
    biases: tuple[TensorPart, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerParts:
    attention_norm: TensorPart
    qkv: LinearParts
    query_norm: TensorPart | None
    key_norm: TensorPart | None
    attention_output: LinearParts
    feed_forward_norm: TensorPart
    gate_up: LinearParts
    down: LinearParts


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """`head` is None when the embedding serves as head too."""

    embedding: TensorPart
    layers: tuple[LayerParts, ...]
    final_norm: TensorPart
    head: TensorPart | None


def decoder_parts(spec: ModelSpec) -> DecoderParts:
    """The tensors of a Llama-shaped decoder, in the order of its forward pass."""
    hidden, vocabulary = spec.hidden_features, spec.vocabulary_tokens
    head = None if spec.tied_embeddings else TensorPart("lm_head.weight", (vocabulary, hidden), 0)
    return DecoderParts(
        embedding=TensorPart("model.embed_tokens.weight", (vocabulary, hidden), 0),
        layers=tuple(_layer_parts(spec, f"model.layers.{layer}") for layer in range(spec.layers)),
        final_norm=_norm("model.norm", hidden),
        head=head,
    )


def _layer_parts(spec: ModelSpec, prefix: str) -> LayerParts:
    attention, hidden, inner = spec.attention, spec.hidden_features, spec.feed_forward_features
    head_dim, qk_norm = attention.head_dim, attention.qk_norm
    block, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = {
        f"{block}.q_proj": attention.query_features,
        f"{block}.k_proj": attention.kv_features,
        f"{block}.v_proj": attention.kv_features,
    }
    gate_up = {f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}
    output_shape = (hidden, attention.query_features)
    return LayerParts(
        attention_norm=_norm(f"{prefix}.input_layernorm", hidden),
        qkv=_split_by_rows(qkv, hidden, attention.qkv_bias, head_dim),
        query_norm=_norm(f"{block}.q_norm", head_dim) if qk_norm else None,
        key_norm=_norm(f"{block}.k_norm", head_dim) if qk_norm else None,
        attention_output=_split_by_columns(
            f"{block}.o_proj", output_shape, attention.output_bias, head_dim
        ),
        feed_forward_norm=_norm(f"{prefix}.post_attention_layernorm", hidden),
        gate_up=_split_by_rows(gate_up, hidden, spec.feed_forward_bias, 1),
        down=_split_by_columns(f"{mlp}.down_proj", (hidden, inner), spec.feed_forward_bias, 1),
    )


def _norm(name: str, features: int) -> TensorPart:
    return TensorPart(f"{name}.weight", (features,))


def _split_by_rows(rows: dict[str, int], columns: int, biased: bool, unit: int) -> LinearParts:
    """Fused linears, given as name and output features: every rank has some outputs of each."""

    def part(name: str, *shape: int) -> TensorPart:
        return TensorPart(name, shape, 0, unit, repeats=unit > 1)

    return LinearParts(
        tuple(part(f"{name}.weight", n, columns) for name, n in rows.items()),
        tuple(part(f"{name}.bias", n) for name, n in rows.items() if biased),
    )


def _split_by_columns(name: str, shape: tuple[int, int], biased: bool, unit: int) -> LinearParts:
    """One linear of which every rank has some inputs."""
    bias = TensorPart(f"{name}.bias", shape[:1])
    return LinearParts((TensorPart(f"{name}.weight", shape, 1, unit),), (bias,) if biased else ())


def all_parts(parts: DecoderParts) -> tuple[TensorPart, ...]:
    """Every tensor once, in the order of the forward pass."""
    found = [parts.embedding]
    for layer in parts.layers:
        found.extend(parts_of_layer(layer))
    found.append(parts.final_norm)
    if parts.head is not None:
        found.append(parts.head)
    return tuple(found)


def parts_of_layer(layer: LayerParts) -> Iterator[TensorPart]:
    yield layer.attention_norm
    yield from layer.qkv.weights + layer.qkv.biases
    yield from (part for part in (layer.query_norm, layer.key_norm) if part is not None)
    yield from layer.attention_output.weights + layer.attention_output.biases
    yield layer.feed_forward_norm
    yield from layer.gate_up.weights + layer.gate_up.biases
    yield from layer.down.weights + layer.down.biases
