"""Over how many ranks a model can be cut. Knows sizes only, so it needs no torch."""

from collections.abc import Iterator

from tandem.facts.model import ModelSpec


def refused_division(spec: ModelSpec, tensor_ranks: int, stages: int) -> Iterator[tuple[str, str]]:
    """The options at fault, each with what is wrong with it; none if `spec` can be cut so."""
    attention = spec.attention
    if attention.heads % tensor_ranks:
        yield (
            "tensor_parallel",
            f"tensor_parallel is {tensor_ranks}; expected a divisor of the {attention.heads} "
            "attention heads of this model",
        )
    if attention.kv_heads % tensor_ranks and tensor_ranks % attention.kv_heads:
        yield (
            "tensor_parallel",
            f"tensor_parallel is {tensor_ranks}; expected a divisor or a multiple of the "
            f"{attention.kv_heads} KV heads of this model",
        )
    if stages > spec.layers:
        yield (
            "pipeline_parallel",
            f"pipeline_parallel is {stages}; this model has {spec.layers} layers to share out",
        )
