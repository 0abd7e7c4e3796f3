"""What a family may decide: the features that differ between Llama-shaped decoders."""

from dataclasses import dataclass
from typing import Protocol

from tandem.models.config_file import Fields


@dataclass(frozen=True, slots=True)
class Traits:
    """`window_tokens` has one entry a layer; `default_head_dim` None means hidden / heads."""

    window_tokens: tuple[int | None, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    qk_norm: bool = False
    default_head_dim: int | None = None


class ReadTraits(Protocol):
    def __call__(self, config: Fields, layers: int) -> Traits: ...
