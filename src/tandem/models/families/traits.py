"""What a family may decide: the features in which decoders differ from each other."""

from dataclasses import dataclass
from typing import Protocol

from tandem.facts.model import Activation
from tandem.models.config_file import Fields


@dataclass(frozen=True, slots=True)
class Traits:
    """`window_tokens` has one entry a layer; `default_head_dim` None means hidden / heads. The
    others as in `ModelSpec`; `tied_embeddings` where the configuration does not say."""

    window_tokens: tuple[int | None, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    qk_norm: bool = False
    default_head_dim: int | None = None
    activation: Activation = "silu"
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    tied_embeddings: bool = False


class ReadTraits(Protocol):
    def __call__(self, config: Fields, layers: int) -> Traits: ...
